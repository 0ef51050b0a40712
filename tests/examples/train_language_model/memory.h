#pragma once

namespace language_model {

/// Keeps freed memory in the process. A step frees what the next one takes, and memory that goes
/// back to the system comes again page by page.
void keep_freed_memory();

}  // namespace language_model
