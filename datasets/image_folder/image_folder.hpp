// SPDX-License-Identifier: MIT
#pragma once

// The data set "any folder of class folders": ImageFolder, whose classes are what the folder holds. The reader is in
// data/, as data sets of a name (ImageNet) come in that form too.
#include <tutti/data/image_folder.hpp>
