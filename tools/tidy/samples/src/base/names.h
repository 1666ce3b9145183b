// Five unrelated functions of one name are too many; an overload and an override count with what they belong to.
#pragma once

struct First {
  virtual void run();  // expect: shared-name
  void run(int);
  void stop();
};
struct FirstAgain : First {
  void run() override;
};
struct Second {
  void run();  // expect: shared-name
  void stop();
};
struct Third {
  void run();  // expect: shared-name
  void stop();
};
struct Fourth {
  void run();  // expect: shared-name
  void stop();
};
struct Fifth {
  void run();  // expect: shared-name
};
