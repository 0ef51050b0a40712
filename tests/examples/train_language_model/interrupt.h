#pragma once

namespace language_model {

/// The exit status of a program that an interrupt stopped.
constexpr int kInterrupted = 130;

/// From now on SIGINT and SIGTERM ask for a stop, once; a second one ends the program as usual.
void catch_interrupts();
bool interrupted();

}  // namespace language_model
