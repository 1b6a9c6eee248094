# SPDX-License-Identifier: MIT
# The steps of run.sh that measure tutti and, if it is installed, PyTorch. run.sh sources this file.
# shellcheck shell=bash disable=SC2154

# unpacked FILE.xz FOLDER: unpacks the file into the folder unless it is there. Some images have no xz.
unpacked() {
  local to
  to=$2/$(basename "$1" .xz)
  [[ -s $to ]] && return
  if have xz; then xz -dc "$1" >"$to"; else "$python" -c 'import lzma, shutil, sys
with lzma.open(sys.argv[1]) as f, open(sys.argv[2], "wb") as to:
    shutil.copyfileobj(f, to)' "$1" "$to"; fi || { rm -f "$to" && note "$1 cannot be unpacked" && return 1; }
}

step_cifar10() {
  local program=$build/tree/examples/train_cifar10 turn begin seconds first accuracy peer
  [[ -x $program ]] || { note "train_cifar10 was not built" && return 1; }
  if [[ -z $data ]]; then
    note "synthetic images (no --data)."
    limited "$program" --backend cuda --precision bf16 --benchmark --epochs 1 --batch-size 512 --run-dir "$build/cifar10-run"
    local status=$?
    rm -rf "$build/cifar10-run"
    return $status
  fi
  local images=(--data "$data") form="the original files" prefix folder=$data
  for prefix in cifar10_ ""; do
    if [[ -f $data/${prefix}train.rec.xz ]]; then
      folder=$build/data
      mkdir -p "$folder"
      unpacked "$data/${prefix}train.rec.xz" "$folder" && unpacked "$data/${prefix}val.rec.xz" "$folder" || return
    fi
    [[ -f $folder/${prefix}train.rec ]] || continue
    images=(--data-train "$folder/${prefix}train.rec" --data-val "$folder/${prefix}val.rec")
    form="JPEGs"
    break
  done
  # The first process compiles kernels and stores plans; the second one reads them.
  for turn in 1 2; do
    begin=$(date +%s.%N)
    limited "$program" --backend cuda --recipe fast "${images[@]}" --seed "$turn" --run-dir "$build/cifar10-run" \
      >"$logs/cifar10-$turn.log" || return
    seconds=$(awk "BEGIN { printf \"%.2f\", $(date +%s.%N) - $begin }")
    rm -rf "$build/cifar10-run"
    cat "$logs/cifar10-$turn.log"
    accuracy=$(sed -nE 's/^test.*views.*top-1 ([0-9.]+) %.*/\1/p' "$logs/cifar10-$turn.log" | tail -n 1)
    [[ -n $accuracy ]] || { note "no accuracy printed" && return 1; }
    [[ $turn == 1 ]] && first=$seconds
    note "process $turn: $seconds s, $accuracy %."
  done
  peer=-
  if [[ $form == JPEGs ]]; then
    note "PyTorch's run reads the original files alone."
  elif has_torch; then
    if limited "$python" "$root/bench/baselines/torch_cifar_recipe.py" --data "$data" --seed 2 >"$logs/cifar10-torch.jsonl"; then
      cat "$logs/cifar10-torch.jsonl"
      peer=$("$python" -c 'import json, sys
d = json.loads(sys.stdin.read().splitlines()[-1])
print("{:.2f} s, {:.2f} %".format(d["seconds"], 100 * d["accuracy_of_views"]))' <"$logs/cifar10-torch.jsonl")
    else
      note "PyTorch's run failed or was not done in time."
    fi
  fi
  row "CIFAR-10 from $form, start to accuracy" "$seconds s, $accuracy %" "$peer" "94 % in 4 s on the original files"
  row "  the first process, nothing stored" "$first s" "" ""
}

step_first_step() {
  local program=$build/tree/examples/train_cifar10 begin seconds turn
  [[ -x $program ]] || { note "train_cifar10 was not built" && return 1; }
  # The first process compiles kernels and stores plans; the second one reads them.
  for turn in 1 2; do
    begin=$(date +%s.%N)
    limited "$program" --backend cuda --precision bf16 --benchmark --max-steps 1 --batch-size 128 --run-dir "$build/first-step" || return
    seconds=$(awk "BEGIN { printf \"%.2f\", $(date +%s.%N) - $begin }")
    rm -rf "$build/first-step"
    note "process $turn: $seconds s."
  done
  row "a process of one step, plans stored" "$seconds s" "-" "2 s"
}

# number FILE FIELD=VALUE...: prints images_per_second of the line that has all these fields.
number() {
  "$python" - "$@" <<'EOF'
import json, sys
want = dict(a.split("=", 1) for a in sys.argv[2:])
for line in open(sys.argv[1]):
    try:
        d = json.loads(line)
    except ValueError:
        continue
    if all(str(d.get(k)) == v for k, v in want.items()):
        print(f"{d['images_per_second']:.0f}")
        break
EOF
}
ratio() { [[ -n $1 && -n $2 ]] && awk "BEGIN { printf \"%.2fx\", $1 / $2 }" || echo "?"; }

# model, batch, precision, name in the table, target
nets=(
  "resnet50|256|bf16|ResNet-50 224x224, bf16, batch 256|1.5x eager, above compile; H100: 5,200 to 6,000 images/s, H200: 6,300 to 7,300"
  "resnet50|512|bf16|ResNet-50 224x224, bf16, batch 512|1.5x eager, above compile"
  "resnet50|256|f16|ResNet-50 224x224, f16, batch 256|"
  "resnet50-32|128|bf16|ResNet-50 32x32, bf16, batch 128|1.6x compile"
)

step_step() {
  local program=$build/tree/bench/tutti_step ours=$logs/tutti_step.jsonl tuned=$logs/tutti_step_tuned.jsonl status=0
  local model batch precision line n
  [[ -x $program ]] || { note "tutti_step was not built" && return 1; }
  : >"$ours"
  : >"$tuned"
  for n in "${nets[@]}"; do
    model=$(field "$n" 1) batch=$(field "$n" 2) precision=$(field "$n" 3)
    local run=("$program" --backend cuda --model "$model" --batch "$batch" --precision "$precision")
    if ! line=$(limited "${run[@]}" --seconds 4); then
      status=1
      note "$model at $batch in $precision failed."
      # Tells whether the captured step is the reason.
      line=$(at_most 40 "${run[@]}" --seconds 2 --no-graph) && note "With --no-graph it runs."
    fi
    echo "$line" | tee -a "$ours"
    row "$(field "$n" 4)" "$(number "$ours" model="$model" batch="$batch" precision="$precision" || true) images/s" "" "$(field "$n" 5)"
    # Plans that were timed are stored, so later measurements use them too.
    if line=$(at_most 30 "${run[@]}" --seconds 2 --autotune --fusion off); then
      echo "$line" | tee -a "$tuned"
      row "  with --autotune --fusion off" "$(number "$tuned" model="$model" batch="$batch" precision="$precision") images/s" "" ""
    else
      note "$model at $batch in $precision: no result with --autotune in 30 s."
    fi
  done
  return $status
}

# PyTorch measures in a step of its own, so that its compilers disturb no timing. Each result is a line of a file.
step_torch() {
  local file=$logs/torch.jsonl status=0 model batch precision mine best n mode theirs
  : >"$file"
  limited "$python" "$root/tests/gpu/torch_step.py" --until "$(($(date +%s) + $(step_left) - 3))" >"$file" 2>"$logs/torch-errors.log" || status=$?
  cat "$file"
  tail -n 5 "$logs/torch-errors.log"
  for n in "${nets[@]}"; do
    model=$(field "$n" 1) batch=$(field "$n" 2) precision=$(field "$n" 3)
    local which=(model="$model" batch="$batch" precision="$precision") list="" ratios=""
    best=""
    for mine in "$logs/tutti_step.jsonl" "$logs/tutti_step_tuned.jsonl"; do
      [[ -s $mine ]] || continue
      mine=$(number "$mine" "${which[@]}")
      [[ -z $mine ]] || ((mine <= ${best:-0})) || best=$mine
    done
    for mode in eager compile reduce-overhead; do
      theirs=$(number "$file" "${which[@]}" mode=$mode)
      [[ -n $theirs ]] || continue
      list+="$mode $theirs, "
      [[ -z $best ]] || ratios+="$(ratio "$best" "$theirs") $mode, "
    done
    [[ -z $list ]] || row "$(field "$n" 4)" "${best:+$best images/s}" "${list%, }" ""
    [[ -z $ratios ]] || row "  ratio" "${ratios%, }" "" ""
  done
  # A comparison that lacks only the last ways to run PyTorch is a result.
  if [[ $status == 124 && -s $file ]]; then note "not all ways to run PyTorch were measured in time." && status=0; fi
  return $status
}

# Measures the gain of batch norm within convolutions. At the first request cuDNN compiles each kernel, which takes a
# second.
step_fusion() {
  local program=$build/tree/bench/tutti_step precision fusion line mine list="" begin failed=0
  [[ -x $program ]] || { note "tutti_step was not built" && return 1; }
  # `auto` fuses the backward pass of batch norm if a measurement shows that this is faster. `on` fuses it whenever
  # cuDNN supports it.
  for precision in f16 bf16; do
    list=""
    for fusion in off auto $([[ $precision != f16 ]] || echo on); do
      begin=$SECONDS
      line=$(limited "$program" --backend cuda --model resnet50 --batch 256 --precision "$precision" --seconds 2 --autotune \
        --fusion "$fusion") || { note "$precision $fusion: no result." && failed=1 && continue; }
      echo "$line" | tee "$logs/fusion.jsonl"
      mine=$(number "$logs/fusion.jsonl" model=resnet50)
      list+="$fusion $mine, "
      note "$precision $fusion: $((SECONDS - begin)) s."
    done
    row "ResNet-50, $precision, batch 256, --autotune --fusion" "" "${list%, }" ""
  done
  rm -f "$logs/fusion.jsonl"
  return $failed
}

# Measures the share of the memory bandwidth that batch norm's kernels reach, because other numbers do not show what
# limits them.
step_bandwidth() {
  local program=$build/tree/bench/tutti_step ncu
  ncu=$(tool ncu)
  [[ -x $program ]] || { note "tutti_step was not built" && return 1; }
  # Without these options ncu locks the clocks, and empties the caches before each kernel: the second pass of a batch norm
  # begins with what the first one left in the L2 cache.
  limited "$ncu" --clock-control none --cache-control none --set none --csv --metrics dram__throughput.avg.pct_of_peak_sustained_elapsed,gpu__time_duration.sum \
    -k regex:norm_ --launch-count 300 "$program" --backend cuda --model resnet50 --batch 256 --precision bf16 --seconds 0.1 \
    --no-graph >"$logs/ncu.csv" || { note "ncu failed: may this user read the counters?" && return 1; }
  local line
  while read -r line; do row "  $line" "" "" "80 % of the memory's speed"; done < <("$python" - "$logs/ncu.csv" <<'EOF'
import csv, sys
lines = [l for l in open(sys.argv[1]) if l.startswith('"')]
launches = {}
for d in csv.DictReader(lines):
    launches.setdefault((d["ID"], d["Kernel Name"].split("<")[0].split("(")[0].split()[-1]), {})[d["Metric Name"]] = (
        float(d["Metric Value"].replace(",", "")), d["Metric Unit"])
kernels = {}
for (_, name), m in launches.items():
    share, time = m["dram__throughput.avg.pct_of_peak_sustained_elapsed"][0], m["gpu__time_duration.sum"]
    k = kernels.setdefault(name, [0.0, 0.0])
    seconds = time[0] * {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3}.get(time[1], 1e-9)
    k[0] += share * seconds
    k[1] += seconds
for name, (weighted, seconds) in sorted(kernels.items(), key=lambda k: -k[1][1]):
    print(f"{name}: {weighted / seconds:.0f} % of the memory's speed, {1e3 * seconds:.2f} ms")
EOF
  )
}

step_allreduce() {
  local program=$build/tree/bench/tutti_step with without
  [[ -x $program ]] || { note "tutti_step was not built" && return 1; }
  if ! "$program" --help 2>&1 | grep -c -- '--nccl' >/dev/null; then
    note "tutti_step has no --nccl"
    return 77
  fi
  for turn in 1 2; do
    limited "$program" --backend cuda --model resnet50 --batch 256 --precision bf16 --seconds 2 >"$logs/alone.jsonl" || return
    limited "$program" --backend cuda --model resnet50 --batch 256 --precision bf16 --seconds 2 --nccl >"$logs/with-nccl.jsonl" || return
  done
  without=$(number "$logs/alone.jsonl" model=resnet50) with=$(number "$logs/with-nccl.jsonl" model=resnet50)
  row "ResNet-50, batch 256, NCCL without its kernels" "$with images/s" "alone: $without" "at most 1 % less: events, fork and join of one rank"
  program=$build/tree/bench/allreduce
  if [[ -x $program ]]; then
    limited "$program" --comm nccl --min 1024 --max 134217728 --factor 8 --iterations 40 || return
  fi
  (($(gpus) > 1)) || { note "one GPU: NCCL starts no kernel." && return; }
  # One rank for each GPU.
  local launcher=$build/tree/tools/tutti-launch
  program=$build/tree/examples/train_cifar10
  [[ -x $launcher && -x $program ]] || { note "tutti-launch was not built" && return 1; }
  limited "$launcher" -n "$(gpus)" "$program" --backend cuda --strategy nccl --precision bf16 --benchmark --max-steps 50 \
    --batch-size 512 --run-dir "$build/nccl-run" || { note "a rank for each of $(gpus) GPUs failed." && return 1; }
  rm -rf "$build/nccl-run"
  note "$(gpus) GPUs trained together."
}

step_convolutions() {
  local name program count=0
  for name in convolution batch_norm; do
    program=$build/tree/bench/$name
    [[ -x $program ]] || { note "$name was not built." && continue; }
    "$program" --benchmark_list_tests --benchmark_filter=cuda | grep -ci cuda >/dev/null || { note "$name has no rows for cuda." && continue; }
    at_most 15 "$program" --benchmark_filter=cuda --benchmark_min_time=0.05 || return
    count=$((count + 1))
  done
  ((count > 0)) || return 77
  note "see $(log convolutions)."
}
