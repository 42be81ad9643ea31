// Charts of a report's page. Pure functions; any thread.
#pragma once

#include <string>

#include "eval/report.h"

namespace kvarto {

// Each a figure under a heading of level 4, named after the setting; empty where there is nothing to draw.
std::string divergence_chart(const SettingReport& setting);
std::string agreement_chart(const SettingReport& setting);
std::string retention_chart(const SettingReport& setting);

}  // namespace kvarto
