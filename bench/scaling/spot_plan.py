# SPDX-License-Identifier: MIT
"""The options and the table of Spot instances of tutti-plan."""
import math

import spot_model
import spot_traces


# The defaults of options that have no meaning without Spot instances. The times are rounded from bench/RESULTS.md: a join, and as
# a loss with tutti SIGKILL of rank 0, which takes longer than a leave with notice (0.13 s), with restarts a leave with notice (torchrun).
DEFAULTS = {"replacement_minutes": 10, "pause_seconds": 0.3, "join_seconds": 0.3, "restart_seconds": 46, "restart_join_seconds": 11,
            "checkpoint_seconds": 2}


def add_options(a, number):
    """Adds the options to a parser. number(least, above, whole, most): returns a type for argparse."""
    a.add_argument("--spot-trace", action="append", metavar="TRACE", help="file with a trace of Spot capacity, or zone:NAME with one of "
                   + ", ".join(spot_traces.ZONES) + "; several: a fleet in several zones")
    a.add_argument("--interruptions-per-hour", type=number(0, most=3600), help="how often an instance is lost per hour, each at a time of its own")
    a.add_argument("--replacement-minutes", type=number(0), help="with --interruptions-per-hour: time until another instance comes (10)")
    a.add_argument("--spot-price", type=number(0), help="price of a Spot instance per hour (the mean of the trace, if it has prices)")
    a.add_argument("--pause-seconds", type=number(0), help="tutti: time without a step if an instance is lost (0.3)")
    a.add_argument("--join-seconds", type=number(0), help="tutti: time without a step if an instance joins (0.3)")
    a.add_argument("--restart-seconds", type=number(0), help="time from a loss to the next step of a job that restarts; also of the start "
                   "of each job after a time without instances (46)")
    a.add_argument("--restart-join-seconds", type=number(0), help="the same if instances join and none is lost (11)")
    a.add_argument("--checkpoint-seconds", type=number(0), help="time that a checkpoint interrupts a job that restarts (2)")
    a.add_argument("--checkpoint-minutes", type=number(0.001), help="time between two checkpoints of a job that restarts, in place of an epoch")


def read_trace(o, fail):
    """Checks the options, sets their defaults, and returns the trace of --spot-trace, or None. fail(where, expected, got, hint, code) ends the program."""
    if o.spot_trace and o.interruptions_per_hour is not None:
        fail("--interruptions-per-hour", "either --spot-trace or --interruptions-per-hour", "both")
    for name in ("spot_price", "checkpoint_minutes", *DEFAULTS):
        if getattr(o, name) is not None and not o.spot_trace and o.interruptions_per_hour is None:
            fail(f"--{name.replace('_', '-')}", "--spot-trace or --interruptions-per-hour with it", "neither")
    if o.spot_trace and o.replacement_minutes is not None:
        fail("--replacement-minutes", "--interruptions-per-hour with it", "--spot-trace", "a trace says when instances come")
    for name, value in DEFAULTS.items():
        if getattr(o, name) is None:
            setattr(o, name, value)
    try:
        zones = [spot_traces.named(text, "--spot-trace", seed=k) for k, text in enumerate(o.spot_trace or [])]
        return spot_traces.add(zones) if zones else None
    except spot_traces.TraceError as why:
        fail(why.where, why.expected, why.got, why.hint, 2 if why.where == "--spot-trace" else 3)


def mean_price(o, trace, fail):
    """Returns the price of a Spot instance per hour: --spot-price, or the mean of the trace."""
    price = o.spot_price if o.spot_price is not None else trace and trace.price()
    if price is None:
        fail("--spot-price", "the price of a Spot instance" + (", because the trace has no prices" if trace else ""), "none")
    return price


def outcomes(o, n, step, images, speed, trace):
    """Returns [(name of a job, its outcome on n Spot instances, seconds between checkpoints)]."""
    work, segments, bill = images * o.epochs, trace.segments(n) if trace else None, None
    if trace and o.spot_price is None:
        bill = trace.bill(n)

    def outcome(rules):
        if trace:
            return spot_model.Replay(segments, speed, rules).outcome(work, bill)
        return spot_model.at_random(n, o.interruptions_per_hour, o.replacement_minutes / 60, speed, rules, work)
    elastic = outcome(spot_model.Rules(o.pause_seconds, o.join_seconds, o.restart_seconds, step))
    found = [("tutti", elastic, None)]
    usual = ("restarts, each epoch", images / speed(n))
    if o.checkpoint_minutes:
        usual = (f"restarts, each {o.checkpoint_minutes:g} min", 60 * o.checkpoint_minutes)
    mean = 3600 / elastic.changes if elastic and elastic.changes else math.inf
    best = spot_model.best_interval(o.checkpoint_seconds, mean) if mean < math.inf else work / speed(n)
    for name, interval in (("restarts, best interval", max(best, step)), usual):
        found.append((name, outcome(spot_model.Rules(o.restart_seconds, o.restart_join_seconds, o.restart_seconds, interval, o.checkpoint_seconds)), interval))
    return found


def table(o, price, step_of, images, speed, trace):
    """Prints the table of Spot instances. Returns {name of a job: [(instances, hours, money, percent)]}. A job that never ends has no row."""
    if trace:
        s = trace.statistics()
        print(f"Spot: {trace.name}: {trace.hours / 24:.1f} days of {s.instances} instances, {100 * s.available:.1f} % available, "
              f"{s.losses:.3f} losses of an instance per hour, {s.together:.1f} together; ", end="")
    else:
        print(f"Spot: {o.interruptions_per_hour:g} losses of an instance per hour, replaced after {o.replacement_minutes:g} min; ", end="")
    print(f"{price:g} an hour; pauses: tutti {o.pause_seconds:g} s (loss) and {o.join_seconds:g} s (join), restarts {o.restart_seconds:g} s "
          f"(loss), {o.restart_join_seconds:g} s (join) and {o.checkpoint_seconds:g} s a checkpoint")
    print("\n| instances | on average | changes an hour | job | checkpoint, min | useful time | hours | nine of ten within | money | an epoch |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    jobs, around = {}, (o.setup_minutes + o.evaluation_minutes) / 60
    for n in o.nodes:
        for name, got, interval in outcomes(o, n, step_of(n), images, speed, trace):
            rows, minutes = jobs.setdefault(name, []), "" if interval is None else f"{interval / 60:.1f}"
            if got is None:
                print(f"| {n} | | | {name} | {minutes} | 0 % | never | | | |")
                continue
            hours, late = got.hours + around, got.late_hours + around
            money = (got.instance_hours * price if got.money is None else got.money) + around * n * price + hours * o.hourly_extra
            rows.append((n, late, money, 100 * got.share))
            print(f"| {n} | {got.instances:.1f} | {got.changes:.2f} | {name} | {minutes} | {100 * got.share:.2f} % | {hours:.2f} | {late:.2f} | "
                  f"{money:.2f} | {money / o.epochs:.2f} |")
    return jobs
