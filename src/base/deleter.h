// For a unique_ptr of what a C library makes, by the function that frees it:
//   std::unique_ptr<BIO, Deleter<::BIO_free>>
#pragma once

namespace gpulet {

template <auto Free>
struct Deleter {
  template <class Object>
  void operator()(Object* object) const {
    Free(object);
  }
};

}  // namespace gpulet
