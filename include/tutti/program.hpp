// SPDX-License-Identifier: MIT
#pragma once

// Everything of tutti.hpp, and what a program of one fit(job, net, ...) needs: Model and Images. Job itself is in
// <tutti/backends/make.hpp>.

#include <tutti/data/images/images.hpp>
#include <tutti/models/model.hpp>
#include <tutti/train/fit_job.hpp>
#include <tutti/tutti.hpp>
