// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/backends/make/backend.hpp>
#include <tutti/backends/make/strategy.hpp>

// Backends and strategies by name: what the program was linked with, tutti::onednn, tutti::mpi and so on. With
// tutti::compiled the file that includes this compiles none of them; with the headers alone it compiles them all, and
// one that wants a single backend names it. make/backend_rows.hpp and make/strategy_rows.hpp are the only list of them:
// a new one is a folder and a row.
