#include "cli/machine_rates.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

TEST(MachineRates, KeepTheLargerOfTwoMeasurements) {
  MachineRates machine;
  EXPECT_EQ(machine.of(1).bytes, 0);
  machine.measure(1);
  const Rates first = machine.of(1);
  machine.measure(1);
  const Rates second = machine.of(1);
  for (const auto rate : {&Rates::bytes, &Rates::f32, &Rates::int8, &Rates::int8_few, &Rates::sha256}) {
    EXPECT_GT(first.*rate, 0);
    EXPECT_GE(second.*rate, first.*rate);
  }
  EXPECT_EQ(machine.of(2).bytes, 0);  // nobody asked
}

TEST(MachineRates, WithoutTilesFewRowsAreAsFastAsMany) {
  MachineRates machine(SimdTarget::scalar);
  machine.measure(1);
  EXPECT_EQ(machine.of(1).int8_few, machine.of(1).int8);
}

}  // namespace
}  // namespace kvarto
