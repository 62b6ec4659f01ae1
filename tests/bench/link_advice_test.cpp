// What is said about a link follows from both of its ends and from what it runs at; planted under another root of /sys.
#include <terrace/bench/link/link_advice.h>

#include <gmock/gmock.h>

#include <terrace/bench/link/link.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/tests/examples/scratch_folder.h>

namespace terrace::bench {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class LinkAdvice : public testing::Test {
 protected:
  void end(const std::string& folder, const char* which, const char* speed, const char* width) {
    fs::create_directories(scratch_ / folder);
    scratch_.write(folder + "/" + which + "_link_speed", std::string(speed) + " GT/s PCIe\n");
    scratch_.write(folder + "/" + which + "_link_width", std::string(width) + "\n");
  }
  // A card of PCIe 4 with 16 lanes.
  void plant(const char* slot_speed, const char* slot_width, const char* now_speed, const char* now_width) {
    end("sys/devices/port", "max", slot_speed, slot_width);
    end("sys/devices/port/card", "max", "16.0", "16");
    end("sys/devices/port/card", "current", now_speed, now_width);
    fs::create_directories(scratch_ / "sys/bus/pci/devices");
    if (!fs::exists(scratch_ / "sys/bus/pci/devices/0000:17:00.0"))
      fs::create_directory_symlink(scratch_ / "sys/devices/port/card", scratch_ / "sys/bus/pci/devices/0000:17:00.0");
  }
  [[nodiscard]] machine::PciEnds ends() const { return machine::ends_of_pci("0000:17:00.0", scratch_.path()); }
  [[nodiscard]] std::vector<std::string> advice(double measured_gb = 0) const { return link_advice(ends(), 1e9 * measured_gb); }

  ScratchFolder scratch_;
};

TEST_F(LinkAdvice, AFullLinkNeedsNone) {
  plant("16.0", "16", "16.0", "16");
  EXPECT_THAT(advice(25), IsEmpty());
  EXPECT_EQ("PCIe 4 with 16 lanes", describe(ends().now));
  plant("32.0", "16", "16.0", "16");
  EXPECT_THAT(advice(25), IsEmpty()) << "a faster slot changes nothing";
}

TEST_F(LinkAdvice, ACardInASlotOfFourLanesIsTold) {
  plant("16.0", "4", "16.0", "4");
  EXPECT_THAT(advice(7),
              ElementsAre(AllOf(HasSubstr("the card has 16 lanes, its slot 4"),
                                HasSubstr("at most 7.9 GB/s each way instead of 31.5"), HasSubstr("a slot of 16 lanes"))));
}

TEST_F(LinkAdvice, LanesAndGenerationsThatAreNotUsedAreTold) {
  plant("16.0", "16", "16.0", "8");
  EXPECT_THAT(advice(13), ElementsAre(HasSubstr("8 of 16 possible lanes are in use")));
  plant("16.0", "16", "2.5", "16");
  EXPECT_THAT(advice(3), ElementsAre(HasSubstr("the link is PCIe 1, although PCIe 4 is possible")));
  plant("8.0", "16", "8.0", "16");
  EXPECT_THAT(advice(12), ElementsAre(HasSubstr("the slot is PCIe 3, the card PCIe 4")));
}

TEST_F(LinkAdvice, ARateAboveTheNamedLinkMeansThatItIsHidden) {
  plant("2.5", "1", "2.5", "1");
  EXPECT_THAT(advice(50), ElementsAre(HasSubstr("a virtual machine hides the real link")));
}

TEST_F(LinkAdvice, WhatTheKernelDoesNotTellHasNone) {
  EXPECT_THAT(advice(), IsEmpty());
  EXPECT_EQ("unknown", describe(ends().now));
}

// An idle link is slow; the fastest look counts.
TEST_F(LinkAdvice, ALinkIsReadWhileCopiesRun) {
  ThreadPool pool(1);
  const auto device = make_cpu_device(pool);
  int looks = 0;
  const auto found = link_while_copying(*device, 64 * kKiB, [&] {
    const bool awake = ++looks == 5;
    plant("16.0", "16", awake ? "16.0" : "2.5", "16");
    return ends();
  });
  EXPECT_GT(looks, 5);
  EXPECT_EQ(4, found.now.generation());
}

TEST(GpusAdvice, NamesTheGpusThatShareALinkAndTheSlowOne) {
  EXPECT_THAT(gpus_advice("upload_to_all", {{"cuda:0", 25, 24}, {"cuda:1", 25, 21}}), IsEmpty());
  EXPECT_THAT(gpus_advice("upload_to_all", {{"cuda:0", 25, 12}, {"cuda:1", 25, 24}, {"cuda:2", 25, 13}}),
              ElementsAre(AllOf(HasSubstr("upload_to_all: cuda:0, cuda:2 together: 25 GB/s, 50 % of the sum alone"),
                                HasSubstr("share a switch"))));
  EXPECT_THAT(
      gpus_advice("upload_to_all", {{"cuda:0", 50, 49}, {"cuda:1", 6, 6}}),
      ElementsAre(AllOf(HasSubstr("cuda:1 is slow even alone: 6 GB/s, 12 % of cuda:0's 50"), HasSubstr("bench pcie --gpu 1"))));
}

}  // namespace
}  // namespace terrace::bench
