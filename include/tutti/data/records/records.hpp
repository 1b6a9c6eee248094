// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

namespace tutti {

// Encoded images (JPEG, PNG) with a label each, independent of the file format. All calls are const and safe from
// several threads at once.
//   read(i, bytes)  replaces `bytes` by the encoded image of record i in [0, size()) and returns its label, from 0;
//                   throws DataError that names file and record if the record is damaged
//   where(i)        returns the name of file and record, for messages
//   classes()       returns one more than the largest possible label
//   block()         returns how many adjacent records are best read together: 1 if every record costs the same at any
//                   position (a folder of files, an own index in memory)
// A set may have class_names(), a std::vector<std::string> with one name per class, or empty.
template <class R>
concept Records = requires(const R& r, std::int64_t i, std::vector<std::uint8_t>& bytes) {
  { r.size() } -> std::same_as<std::int64_t>;
  { r.read(i, bytes) } -> std::same_as<std::int32_t>;
  { r.where(i) } -> std::same_as<std::string>;
  { r.classes() } -> std::same_as<int>;
  { r.block() } -> std::same_as<std::int64_t>;
};

// Any set of records, chosen at run time. Copies share it.
class AnyRecords {
 public:
  template <Records R>
  requires(!std::same_as<R, AnyRecords>)
      AnyRecords(R records)  // NOLINT(google-explicit-constructor): a set of records is one
      : self_(std::make_shared<const Model<R>>(std::move(records), std::vector<std::string>{})) {}
  // The names of the classes, for records without them: one per class, or an empty list.
  template <Records R>
  AnyRecords(R records, std::vector<std::string> class_names)
      : self_(std::make_shared<const Model<R>>(std::move(records), std::move(class_names))) {}

  [[nodiscard]] std::int64_t size() const { return self_->size(); }
  [[nodiscard]] std::int32_t read(std::int64_t i, std::vector<std::uint8_t>& bytes) const {
    if (i < 0 || i >= size()) fail<UsageError>("records", {"an index in [0, ", size(), ")"}, i);
    return self_->read(i, bytes);
  }
  [[nodiscard]] std::string where(std::int64_t i) const { return self_->where(i); }
  [[nodiscard]] int classes() const { return self_->classes(); }
  [[nodiscard]] std::int64_t block() const { return self_->block(); }
  // Returns one name for each class, or an empty list.
  [[nodiscard]] std::vector<std::string> class_names() const { return self_->class_names(); }

 private:
  struct Interface {
    virtual ~Interface() = default;
    [[nodiscard]] virtual std::int64_t size() const = 0;
    [[nodiscard]] virtual std::int32_t read(std::int64_t i, std::vector<std::uint8_t>& bytes) const = 0;
    [[nodiscard]] virtual std::string where(std::int64_t i) const = 0;
    [[nodiscard]] virtual int classes() const = 0;
    [[nodiscard]] virtual std::int64_t block() const = 0;
    [[nodiscard]] virtual std::vector<std::string> class_names() const = 0;
  };
  template <class R>
  struct Model final : Interface {
    Model(R r, std::vector<std::string> c) : records(std::move(r)), names(std::move(c)) {}
    [[nodiscard]] std::int64_t size() const override { return records.size(); }
    [[nodiscard]] std::int32_t read(std::int64_t i, std::vector<std::uint8_t>& bytes) const override {
      return records.read(i, bytes);
    }
    [[nodiscard]] std::string where(std::int64_t i) const override { return records.where(i); }
    [[nodiscard]] int classes() const override { return records.classes(); }
    [[nodiscard]] std::int64_t block() const override { return records.block(); }
    [[nodiscard]] std::vector<std::string> class_names() const override {
      if constexpr (requires { records.class_names(); })
        return records.class_names();
      else
        return names;
    }
    R records;
    std::vector<std::string> names;
  };
  std::shared_ptr<const Interface> self_;
};

}  // namespace tutti
