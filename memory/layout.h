// Packing of tensors into chunks.
//
// A layer's tensors are packed back to back (each aligned to 64 elements) into that layer's own chunks: no chunk is shared by
// two layers. They form runs, and a run is one contiguous span on the device. A layer has one run, unless it has large units:
// tensors that are used together, without the rest of the layer. Chunk i of every kind covers the same elements. The chunk size
// is searched for least waste.
//
// Pure. Threads: a value after construction. Errors: std::logic_error for an empty or negative tensor.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace terrace::memory {

struct LayoutTensor {
  std::string name;
  std::uint64_t elements = 0;
  std::uint64_t origin = 0;  // for a part of a larger tensor: the part's first element in that tensor
  bool begins_unit = false;  // from here on, the tensors are used separately from those before
  bool apart = false;        // the unit may begin a run even if few elements lie before it
  bool begins_run = false;   // always begins a run
};

struct TensorPlace {
  std::uint32_t layer = 0;
  std::uint32_t tensor = 0;         // position within the layer
  std::uint64_t first_element = 0;  // within the layer's chunks
  std::uint64_t elements = 0;
  std::uint64_t origin = 0;  // as in LayoutTensor
};

// Consecutive chunks of a layer that are one span on the device.
struct LayoutRun {
  std::uint32_t first = 0, count = 0;  // chunks within the layer
};

// The part of one tensor that one chunk covers.
struct Segment {
  std::uint32_t tensor = 0;          // position within the layer
  std::uint64_t tensor_element = 0;  // first element, within the whole tensor
  std::uint64_t chunk_element = 0;   // first element, within the chunk
  std::uint64_t elements = 0;
};

class Layout {
 public:
  static constexpr std::uint64_t kAlignElements = 64;
  static constexpr std::uint64_t kPageElements = 2048;  // a page of two-byte elements: every dtype's chunk is whole pages

  // A unit begins a block if the elements since the last block's beginning and those up to the layer's end are at least
  // kUnitElements each. It also begins a run if the elements of the current run and those up to the layer's end are at least
  // `least_run` each, per rank of the group: smaller runs would be mostly padding. The first rule does not depend on the group,
  // so neither do the sums of the norm.
  static constexpr std::uint64_t kUnitElements = 1 << 20;
  static constexpr std::uint64_t kBlockElements = 4096;  // chunks of groups are whole blocks of the norm's sums

  // `chunk_elements` is rounded up to a multiple of kPageElements, or of kBlockElements if `group` > 1. The number of chunks
  // of a layer is a multiple of `group`: the last ones may hold no tensor.
  // `least_run`: fewest elements per rank of the group in a run, where a layer has several runs.
  Layout(std::vector<std::vector<LayoutTensor>> layers, std::uint64_t chunk_elements, std::uint32_t group = 1,
         std::uint64_t least_run = kUnitElements);
  // The chunk size between the bounds that wastes least; of sizes that waste nearly the same (within 0.5 % of all elements),
  // the largest.
  static std::uint64_t search(const std::vector<std::vector<LayoutTensor>>& layers, std::uint64_t min_elements,
                              std::uint64_t max_elements, std::uint32_t group = 1, std::uint64_t least_run = kUnitElements);

  [[nodiscard]] std::uint64_t chunk_elements() const { return chunk_elements_; }
  [[nodiscard]] std::uint32_t layers() const { return static_cast<std::uint32_t>(run_first_.size()); }
  [[nodiscard]] std::uint32_t chunks() const { return chunks_; }  // of one kind
  [[nodiscard]] std::uint32_t first_chunk(std::uint32_t layer) const { return run_first_[layer]; }
  [[nodiscard]] std::uint32_t chunks_of(std::uint32_t layer) const { return run_count_[layer]; }
  [[nodiscard]] std::uint32_t tensors_of(std::uint32_t layer) const {
    return static_cast<std::uint32_t>(places_[layer].size());
  }
  [[nodiscard]] const TensorPlace& place(std::uint32_t layer, std::uint32_t tensor) const { return places_[layer][tensor]; }
  [[nodiscard]] std::vector<Segment> segments(std::uint32_t layer, std::uint32_t chunk_in_layer) const;
  [[nodiscard]] const std::vector<LayoutRun>& runs_of(std::uint32_t layer) const { return runs_[layer]; }
  [[nodiscard]] const LayoutRun& run_of(const TensorPlace& place) const;  // the run in which a tensor lies
  [[nodiscard]] std::uint64_t place_in_run(const TensorPlace& place) const {
    return place.first_element - run_of(place).first * chunk_elements_;
  }
  [[nodiscard]] bool cuts_units() const { return cuts_units_; }                     // whether any unit begins a block
  [[nodiscard]] std::uint64_t tensor_elements() const { return tensor_elements_; }  // without padding
  [[nodiscard]] double waste() const;  // (chunks · chunk_elements − tensor_elements) ÷ tensor_elements

 private:
  std::uint64_t chunk_elements_ = 0, tensor_elements_ = 0;
  std::uint32_t chunks_ = 0;
  bool cuts_units_ = false;
  std::vector<std::uint32_t> run_first_, run_count_;  // [layer]: all chunks of the layer
  std::vector<std::vector<LayoutRun>> runs_;
  std::vector<std::vector<TensorPlace>> places_;
};

}  // namespace terrace::memory
