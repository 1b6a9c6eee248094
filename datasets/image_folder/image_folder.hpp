// SPDX-License-Identifier: MIT
#pragma once

// The data set for any folder of class folders: ImageFolder takes its classes from the folder. The reader is in data/,
// because named data sets (ImageNet) also come in that form.
#include <tutti/data/images/image_folder.hpp>
