// A safetensors file in memory that a test can change into the form of other programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace terrace::test {

struct SafetensorsFile {
  using json = nlohmann::json;

  json header;
  std::string data;

  explicit SafetensorsFile(const std::string& bytes) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    header = json::parse(bytes.substr(sizeof length, length));
    data = bytes.substr(sizeof length + length);
  }
  [[nodiscard]] std::string bytes_of(const std::string& name) const {
    const auto& at = header.at(name).at("data_offsets");
    return data.substr(at.at(0), at.at(1).get<std::size_t>() - at.at(0).get<std::size_t>());
  }
  SafetensorsFile& add(const std::string& name, const std::vector<std::size_t>& shape, const std::string& bytes,
                       const char* type = "F32") {
    header[name] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
    return *this;
  }
  [[nodiscard]] std::string text() const {
    const auto words = header.dump();
    const std::uint64_t length = words.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + words + data;
  }
};

inline std::string zeros(std::size_t floats) { return std::string(floats * sizeof(float), '\0'); }

}  // namespace terrace::test
