#pragma once
#include "cmake/pch.h"
#include <gtest/gtest.h>
