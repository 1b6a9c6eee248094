# SPDX-License-Identifier: MIT
"""Computes how much of its time a job on Spot instances trains, when it ends and what it costs: an elastic job, and a job that
restarts from checkpoints. Used by tutti-plan.

A change of the instances interrupts a job for a pause. An elastic job then continues with the step that was interrupted. A
job that restarts continues from its last checkpoint. So both have the same model: work is kept in portions of `interval`
seconds (a step, or the time between two checkpoints), each portion costs `save` seconds more (0 for a step), and a change
destroys the portion that is not complete. A pause that is interrupted begins again.
"""
import bisect
import math
from dataclasses import dataclass


@dataclass
class Rules:
    """How a job reacts to changes. All times in seconds."""
    loss: float  # pause if instances are lost
    join: float  # pause if instances join
    start: float  # pause if the first instances come after a time without any
    interval: float  # time in which work is done that is kept as a whole
    save: float = 0.0  # time to save it

    def pause(self, before, now):
        """Returns the pause of a change. The end of a trace that continues with its begin may be no change."""
        if before == now:
            return 0.0
        return self.start if before <= 0 else self.join if now > before else self.loss


def kept(seconds, pause, rules):
    """Returns the seconds of work that are kept out of an undisturbed time which begins with a pause."""
    if seconds <= pause:
        return 0.0
    return math.floor((seconds - pause) / (rules.interval + rules.save) + 1e-9) * rules.interval


def kept_share(rate, pause, interval, save=0.0):
    """Returns the mean share of the time that is kept, if changes come at random times, `rate` a second on average (Poisson):
    rate * sum over n of interval * P(the time between two changes is at least pause + n (interval + save))."""
    if rate <= 0:
        return interval / (interval + save)
    portion = rate * (interval + save)
    # exp overflows above 709, where the share is 0.
    return 0.0 if portion > 700 else rate * interval * math.exp(-rate * pause) / math.expm1(portion)


def best_interval(save, mean_time):
    """Returns the time between two checkpoints with the least loss, for changes every `mean_time` seconds on average. First
    order: J. W. Young, CACM 17(9), 1974; higher order: J. T. Daly, Future Generation Computer Systems 22(3), 2006, eq. 37."""
    if save >= 2 * mean_time:
        return mean_time
    part = save / (2 * mean_time)
    return math.sqrt(2 * save * mean_time) * (1 + math.sqrt(part) / 3 + part / 9) - save


@dataclass
class Outcome:
    share: float  # of the work that the instances could have done without pauses
    instances: float  # mean number of available instances
    changes: float  # per hour
    hours: float  # until the work is done: the median over the times at which the job may start
    late_hours: float  # nine of ten starts end within this time
    instance_hours: float  # that are paid: the mean over the starts
    money: float = None  # for them, at the prices of the trace: the mean over the starts


class Replay:
    """A job under the segments of a trace that repeats: [(seconds, instances)]. speed(n): work per second of n instances. If the
    trace ends with as many instances as it begins with, its end is no change: the last segment continues with the first."""

    def __init__(self, segments, speed, rules):
        self.changes, self.moved = sum(a[1] != b[1] for a, b in zip(segments, segments[1:])), 0.0
        if len(segments) > 1 and segments[0][1] == segments[-1][1]:
            self.moved = segments[0][0]  # seconds
            segments = [*segments[1:-1], (segments[-1][0] + self.moved, segments[0][1])]
        self.segments, self.speed, self.rules = segments, speed, rules
        self.done, self.time, self.paid = [0.0], [0.0], [0.0]
        before, ideal = segments[-1][1], 0.0
        self.pauses = []
        for seconds, now in segments:
            self.pauses.append(rules.pause(before, now))
            work = kept(seconds, self.pauses[-1], rules) * speed(now) if now else 0.0
            ideal += seconds * speed(now) if now else 0.0
            self.done.append(self.done[-1] + work)
            self.time.append(self.time[-1] + seconds)
            self.paid.append(self.paid[-1] + seconds * now)
            before = now
        self.share = self.done[-1] / ideal if ideal else 0.0
        if len(segments) == 1 and ideal:  # no change at all
            self.share = kept_share(0, 0, rules.interval, rules.save)

    def end_of(self, begin, work):
        """Returns (seconds, instance-seconds) until this work is done, for a job that starts at this time of the trace."""
        first, eps = min(bisect.bisect_right(self.time, begin) - 1, len(self.segments) - 1), 1e-9 * work  # eps: sums are rounded
        seconds, now = self.time[first + 1] - begin, self.segments[first][1]
        rest = kept(seconds, self.pauses[first], self.rules) * self.speed(now) if now else 0.0
        if rest + eps >= work:
            return self._within(first, work, eps)
        passed, paid = seconds, seconds * now
        work -= rest
        # The rest of this pass, whole passes, and the segment in which the work ends.
        here = self.done[-1] - self.done[first + 1]
        if work > here + eps:
            passed, paid, work = passed + self.time[-1] - self.time[first + 1], paid + self.paid[-1] - self.paid[first + 1], work - here
            first = -1
            passes = max(0, math.ceil((work - eps) / self.done[-1] - 1e-9) - 1)
            passed, paid, work = passed + passes * self.time[-1], paid + passes * self.paid[-1], work - passes * self.done[-1]
        last = max(bisect.bisect_left(self.done, self.done[first + 1] + work - eps, first + 1) - 1, first + 1)
        while last > 0 and (last == len(self.segments) or self.done[last + 1] <= self.done[last]):
            last -= 1  # nothing is kept here, so what is left is below eps
        passed, paid = passed + self.time[last] - self.time[first + 1], paid + self.paid[last] - self.paid[first + 1]
        more, cost = self._within(last, work - (self.done[last] - self.done[first + 1]), eps)
        return passed + more, paid + cost

    def _within(self, segment, work, eps):
        """Returns the time and the instance-seconds of this work in a segment that can do it, up to eps. The last portion needs no save."""
        useful = work / self.speed(self.segments[segment][1])
        portions = max(0, math.ceil((work - eps) / self.speed(self.segments[segment][1]) / self.rules.interval - 1e-9) - 1)
        seconds = self.pauses[segment] + useful + portions * self.rules.save
        return seconds, seconds * self.segments[segment][1]

    def outcome(self, work, bill=None, starts=100):
        """Returns the outcome of a job with this work, over evenly spaced starts. bill(begin, seconds): the money of the instances
        from this time of the trace. Returns None if the job never ends."""
        if self.share <= 0:
            return None
        total, (_, there) = self.time[-1], self.segments[0]
        begins = [total * k / starts for k in range(starts)]
        if len(self.segments) == 1:
            ends = [(seconds := work / (self.share * self.speed(there)), seconds * there)] * starts
        else:
            ends = [self.end_of((begin - self.moved) % total, work) for begin in begins]
        hours = sorted(seconds / 3600 for seconds, _ in ends)
        money = sum(bill(begin, end[0]) for begin, end in zip(begins, ends)) / starts if bill else None
        return Outcome(self.share, self.paid[-1] / total, self.changes / (total / 3600), hours[(starts - 1) // 2], hours[math.ceil(0.9 * starts) - 1],
                       sum(paid for _, paid in ends) / starts / 3600, money)


def at_random(instances, losses, replacement, speed, rules, work):
    """Returns the outcome of a job that loses instances independently, each of them `losses` times per hour, and replaces them after
    `replacement` hours. Returns None if the job keeps nothing."""
    there = instances / (1 + losses * replacement)
    each_way = there * losses / 3600  # losses per second; as many instances join
    # A change is a loss or a join, with the same probability.
    share = kept_share(2 * each_way, (rules.loss + rules.join) / 2, rules.interval, rules.save)
    rate = share * speed(there)
    if rate < 1e-9 * speed(there):
        return None
    hours = work / rate / 3600
    return Outcome(share, there, 2 * each_way * 3600, hours, hours, hours * there)
