// Opens and closes shared libraries: loads_copies LIBRARY...

#include <dlfcn.h>

#include <iostream>
#include <vector>

int main(int argc, char** argv) {
  std::vector<void*> opened;
  for (int i = 1; i < argc; ++i) {
    opened.push_back(dlopen(argv[i], RTLD_NOW | RTLD_LOCAL));
    if (opened.back() == nullptr) {
      std::cerr << dlerror() << "\n";
      return 1;
    }
  }
  for (void* library : opened) dlclose(library);
}
