# SPDX-License-Identifier: MIT
# The steps of run.sh that measure tutti and, if it is installed, PyTorch. run.sh sources this file.
# shellcheck shell=bash disable=SC2154

step_cifar10() {
  local program=$build/tree/examples/train_cifar10 turn begin seconds first accuracy peer
  [[ -x $program ]] || { note "train_cifar10 was not built" && return 1; }
  quiet
  if [[ -z $data ]]; then
    note "synthetic images (no --data)."
    limited "$program" --backend cuda --precision bf16 --benchmark --epochs 1 --batch-size 512 --run-dir "$build/cifar10-run"
    local status=$?
    rm -rf "$build/cifar10-run"
    return $status
  fi
  local images=(--data "$data") form="the original files" prefix
  for prefix in cifar10_ ""; do
    [[ -f $data/${prefix}train.rec ]] || continue
    images=(--data-train "$data/${prefix}train.rec" --data-val "$data/${prefix}val.rec")
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
  quiet
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

# PyTorch prepares while the C++ compiler works. It measures later, when no other program measures.
step_torch() {
  rm -f "$logs"/torch.go "$logs"/torch.ready "$logs"/torch.jsonl
  setsid nice -n 15 "$python" "$root/tests/gpu/torch_step.py" --ready "$logs/torch.ready" --go "$logs/torch.go" --until "$(($(date +%s) + $(left) - 5))" \
    >"$logs/torch.jsonl" 2>"$logs/torch-errors.log" &
  torch_pid=$!
  note "started; see the step \"step\""
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

step_step() {
  local program=$build/tree/bench/tutti_step ours=$logs/tutti_step.jsonl tuned=$logs/tutti_step_tuned.jsonl status=0
  local model batch precision mine eager compiled graphs line
  [[ -x $program ]] || { note "tutti_step was not built" && return 1; }
  : >"$ours"
  : >"$tuned"
  quiet
  # model, batch, precision, name in the table, target
  local nets=(
    "resnet50|256|bf16|ResNet-50 224x224, bf16, batch 256|1.5x eager, above compile; 6,000 images/s, aim at 7,500"
    "resnet50|512|bf16|ResNet-50 224x224, bf16, batch 512|1.5x eager, above compile"
    "resnet50|256|f16|ResNet-50 224x224, f16, batch 256|"
    "resnet50-32|128|bf16|ResNet-50 32x32, bf16, batch 128|1.6x compile"
  )
  for n in "${nets[@]}"; do
    model=$(field "$n" 1) batch=$(field "$n" 2) precision=$(field "$n" 3)
    if ! line=$(limited "$program" --backend cuda --model "$model" --batch "$batch" --precision "$precision" --seconds 4); then
      status=1
      note "$model at $batch in $precision failed."
    fi
    echo "$line" | tee -a "$ours"
    # Plans that were timed are stored, so later measurements use them too.
    if line=$(at_most 30 "$program" --backend cuda --model "$model" --batch "$batch" --precision "$precision" \
      --seconds 2 --autotune --fusion off); then
      echo "$line" | tee -a "$tuned"
    else
      note "$model at $batch in $precision: no result with --autotune in 30 s."
    fi
  done
  if [[ -n ${torch_pid:-} ]]; then
    touch "$logs/torch.go"
    while kill -0 "$torch_pid" 2>/dev/null && (($(step_left) > 3)); do sleep 0.5; done
    kill -0 "$torch_pid" 2>/dev/null && note "PyTorch was not done in time." && end_torch
    cat "$logs/torch.jsonl"
    tail -n 5 "$logs/torch-errors.log"
    torch_pid=
  fi
  for n in "${nets[@]}"; do
    model=$(field "$n" 1) batch=$(field "$n" 2) precision=$(field "$n" 3)
    local which=(model="$model" batch="$batch" precision="$precision")
    mine=$(number "$ours" "${which[@]}")
    line=$(number "$tuned" "${which[@]}")
    eager="" compiled="" graphs=""
    if [[ -s $logs/torch.jsonl ]]; then
      eager=$(number "$logs/torch.jsonl" "${which[@]}" mode=eager)
      compiled=$(number "$logs/torch.jsonl" "${which[@]}" mode=compile)
      graphs=$(number "$logs/torch.jsonl" "${which[@]}" mode=reduce-overhead)
    fi
    row "$(field "$n" 4)" "${mine:-?} images/s" "eager ${eager:-?}, compile ${compiled:-?}" "$(field "$n" 5)"
    [[ -z $line ]] || row "  with --autotune --fusion off" "$line images/s" "" ""
    [[ -z $line || -z $mine ]] || mine=$((line > mine ? line : mine))
    row "  ratio" "" "$(ratio "$mine" "$eager") eager, $(ratio "$mine" "$compiled") compile" ""
    [[ -z $graphs ]] || row "  beside torch.compile with CUDA graphs" "" "$graphs, $(ratio "$mine" "$graphs")" ""
  done
  return $status
}

# Measures the gain of batch norm within convolutions. At the first request cuDNN compiles each kernel, which takes a
# second.
step_fusion() {
  local program=$build/tree/bench/tutti_step precision fusion line mine list="" begin failed=0
  [[ -x $program ]] || { note "tutti_step was not built" && return 1; }
  quiet
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
  ncu=$(command -v ncu || echo /usr/local/cuda/bin/ncu)
  [[ -x $program ]] || { note "tutti_step was not built" && return 1; }
  quiet
  limited "$ncu" --set none --csv --metrics dram__throughput.avg.pct_of_peak_sustained_elapsed,gpu__time_duration.sum \
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
  quiet
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
  quiet
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
