#pragma once
#include <gtest/gtest.h>

#include "cmake/pch.h"
