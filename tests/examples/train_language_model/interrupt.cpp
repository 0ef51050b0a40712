#include "interrupt.h"

#include <csignal>

namespace language_model {
namespace {

volatile std::sig_atomic_t stop_asked = 0;

void ask_for_stop(int) { stop_asked = 1; }

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = ask_for_stop;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return stop_asked != 0; }

}  // namespace language_model
