# gpulet_proto(NAME): the library proto_NAME from NAME.proto: messages (lite) and gRPC stubs.
function(gpulet_proto NAME)
  set(out ${CMAKE_CURRENT_BINARY_DIR})
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${NAME}.proto)
  add_custom_command(
    OUTPUT ${out}/${NAME}.pb.cc ${out}/${NAME}.pb.h ${out}/${NAME}.grpc.pb.cc ${out}/${NAME}.grpc.pb.h
    COMMAND ${PROTOC} --proto_path=${CMAKE_CURRENT_SOURCE_DIR} --cpp_out=${out} --grpc_out=${out}
            --plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN} ${source}
    DEPENDS ${source}
    VERBATIM)
  add_library(dep_proto_${NAME} STATIC ${out}/${NAME}.pb.cc ${out}/${NAME}.grpc.pb.cc)
  target_include_directories(dep_proto_${NAME} SYSTEM PUBLIC ${out}/..)
  target_compile_options(dep_proto_${NAME} PRIVATE -w)
  set_target_properties(dep_proto_${NAME} PROPERTIES CXX_CLANG_TIDY "")
  target_link_libraries(dep_proto_${NAME} PUBLIC dep_grpc)
endfunction()
