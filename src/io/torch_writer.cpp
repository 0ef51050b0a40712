#include "io/torch_writer.h"

#include <string>

#include "io/pickle_writer.h"
#include "io/zip_writer.h"

namespace self_attention::io {

void write_torch_zip(OutputFile& file, std::span<const TensorDescription> tensors,
                     const TensorBytes& bytes_of) {
  const std::vector<std::uint64_t> sizes = checked_sizes(file, tensors);
  // torch.load takes whatever name the folder has; torch.save to a stream calls it so.
  const std::string root = "archive/";
  ZipWriter zip(file);
  zip.add(root + "data.pkl", pickle_state_dict(tensors));
  zip.add(root + "byteorder", "little");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    zip.add(root + "data/" + std::to_string(i), checked_bytes(bytes_of, i, sizes[i]));
  }
  zip.add(root + "version", "3\n");
  zip.finish();
}

}  // namespace self_attention::io
