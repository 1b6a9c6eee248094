// SPDX-License-Identifier: MIT
// Job: one object for the backend, the other processes and the decoders.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <string>

#include <tutti/backends/make.hpp>
#include <tutti/engine/backend.hpp>

using namespace tutti;

namespace {

// Sets an environment variable during its lifetime.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

}  // namespace

TEST_CASE("a job of one process chooses a backend and trains alone") {
  Job job;
  CHECK(job.backend().name() == make_backend()->name());
  CHECK(job.rank() == 0);
  CHECK(job.size() == 1);
  CHECK(job.strategy().name() == "solo");
  CHECK(&job.join({}) == &job.strategy());  // the second call returns the same object
  CHECK_FALSE(job.has_servers());
}

TEST_CASE("the options of a job choose the backend, or the environment if the options do not") {
  const Variable backend("TUTTI_BACKEND", "reference"), threads("TUTTI_THREADS", "1");
  Job job;
  CHECK(job.backend().name() == "reference");
  const std::string fastest = built_backends().front() == "cuda" ? "reference" : built_backends().front();
  CHECK(Job({.backend = fastest}).backend().name() == fastest);
}

TEST_CASE("a backend or a strategy that was not linked is refused, and the error gives its name") {
  CHECK_THROWS_WITH_AS((void)Job({.backend = "abacus"}).backend(), doctest::Contains("[Job backend] expected auto or"),
                       UsageError);
  CHECK_THROWS_WITH_AS((void)Job({.strategy = "ring"}).strategy(), doctest::Contains("[Job strategy] expected solo"),
                       UsageError);
  const Variable strategy("TUTTI_STRATEGY", "ring");
  CHECK_THROWS_WITH_AS((void)Job().rank(), doctest::Contains("[environment TUTTI_STRATEGY] expected solo"), UsageError);
  const Variable threads("TUTTI_THREADS", "many");
  CHECK_THROWS_WITH_AS(Job(), "[environment TUTTI_THREADS] expected 0 to 4096 threads, got 'many'.", UsageError);
}
