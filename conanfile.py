# SPDX-License-Identifier: MIT
"""A Conan 2 recipe: conan create . --build=missing

The package is the headers with tutti's own CMake files, for any compiler and architecture; find_package(tutti COMPONENTS ...) finds
oneDNN, Eigen and the other libraries on the machine that builds the project, as every installed tutti does. It has no programs.
"""
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import load

required_conan_version = ">=2.0"


class TuttiConan(ConanFile):
    name = "tutti"
    license = "MIT"
    description = "Header-only C++20 framework that trains image classifiers"
    topics = ("deep-learning", "image-classification", "distributed-training", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    exports = "include/tutti/version.hpp"
    exports_sources = ("CMakeLists.txt", "LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "cmake/*", "include/*", "backends/*", "datasets/*", "src/*",
                       "infra/*", "tools/*", "bench/scaling/*.py", "docs/*", "examples/*")
    no_copy_source = True

    def set_version(self):
        header = load(self, os.path.join(self.recipe_folder, "include", "tutti", "version.hpp"))
        self.version = re.search(r'version = "([^"]+)"', header)[1]

    def validate(self):
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "EXAMPLES", "TOOLS", "BENCH"):
            toolchain.cache_variables[f"TUTTI_BUILD_{part}"] = False
        toolchain.cache_variables["TUTTI_INSTALL"] = True
        toolchain.generate()

    def package(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.install()

    def package_id(self):
        self.info.clear()

    def package_info(self):
        # Its own files say more than Conan would write: components, and tutti::compiled.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "tutti")]
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
