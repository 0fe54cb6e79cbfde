// Threads of the library.

#ifndef SPARKSERVE_NATIVE_ROW_STORE_THREAD_H_
#define SPARKSERVE_NATIVE_ROW_STORE_THREAD_H_

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <thread>
#include <utility>

#include "row_store/status.h"

namespace sparkserve {

// Start a thread that receives no signals: they belong to the program's own threads.
template <typename Body>
Status StartThread(const char* name, std::thread& out, Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    out = std::thread(std::move(body));
    pthread_setname_np(out.native_handle(), name);
  } catch (const std::system_error& error) {
    status = SystemFailure(error.code().value(), -1, "cannot start a thread");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_ROW_STORE_THREAD_H_
