# SPDX-License-Identifier: MIT
"""The faults that planted.py plants, in a list for each scenario. A comment over an
old error has the subject of its mending commit.

A fault is: name, header below include/tutti (or a file of tools/), text in it, text with the fault. The word PLANTED
in the latter stands for a condition that is true while the fault is planted. Without the word, an expression or
statement that replaces the whole text.
"""

ARBITER = "cluster/arbiter/arbiter.hpp"
NEXT = "cluster/arbiter/next_generation.hpp"
CUT = "cluster/arbiter/unreachable.hpp"
CHANNEL = "cluster/channel/control_channel.hpp"
LEASE = "cluster/channel/lease.hpp"
TIMER = "core/pause_tolerant_timer.hpp"
LINK = "cluster/channel/control_link.hpp"
MEMBER = "cluster/elastic_member.hpp"
ELASTIC = "strategy/elastic.hpp"
SERVE = "strategy/parameter_server/server/serve_generations.hpp"
FLAG = "comm/interrupt_flag.hpp"
VERDICT = "tools/launch/job/job_verdict.cpp"
SUPERVISOR = "tools/launch/elastic/elastic.cpp"
SHARES_OF_RUN, SPEEDS = "train/detail/run/run_shares_definitions.hpp", "train/detail/run/share_controller.hpp"
JOB_FOLDERS = "tools/launch/host/job_state.cpp"
SERVER = "strategy/parameter_server/server/server.hpp"
PS = "strategy/parameter_server/"
OWNED, SUMS, WEIGHTS = PS + "server/owned_operations.hpp", PS + "server/round_table.hpp", PS + "server/weight_store.hpp"
WORKER = PS + "worker/worker_thread.hpp"
HOSTS_FILE, ADDED_HOSTS, HOSTS_LOG = (f"tools/launch/elastic/elastic_{part}.cpp" for part in ("file", "site", "log"))
MEMBERS, CHECKPOINTS = (f"train/detail/run/{name}.hpp" for name in ("elastic_members", "run_checkpoints"))
COORDINATOR = "train/detail/fit/coordinator_definitions.hpp"
WRITER, CHECKPOINT = "io/file_writer.hpp", "io/checkpoint/checkpoint.hpp"

# Errors that the code had once. The scenario is `members`.
OLD = [
    # End elastic jobs with the exit code of their workers, count refused connections
    ("servers-stay", ARBITER,
     "if (p.member.role == Role::worker && (finished_ || stopping_)) release_servers();", ";"),
    # End elastic jobs with the exit code of their workers, count refused connections
    ("good-end-of-a-server-counts", VERDICT, "return e.did_work && e.good();", "return e.good();"),
    # Give up one of two workers or servers that do not reach each other
    ("cut-pairs-stay", ARBITER, "if (unreachable_.is_due(now)) evict_unreachable();", ";"),
    # Keep jobs alive while all of their processes, or the launcher alone, are paused
    ("pause-ends-waiting-worker", ELASTIC, "if (!await_lease() && !channel_->released()) fail_without_lease();",
     "if (!joining() && !may_write()) fail_without_lease();"),
    # Keep jobs alive while all of their processes, or the launcher alone, are paused
    ("pause-ends-worker", CHANNEL, "Deadline(lease_.timeout())", "Deadline(std::chrono::milliseconds(0))"),
    # A launcher that was paused does not give up a worker for the time of its own pause
    ("pause-of-the-launcher-counts", ARBITER, "for (Process& p : processes_) p.heard = std::min(now, p.heard + gap);", ";"),
    # End a removed process at once if the news arrives while it enters a generation
    ("end-of-channel-is-lost", MEMBER, "if (!end_.empty()) flag_->raise(end_);", ";"),
    # Release servers when the work is done while a worker waits to join
    ("waiting-worker-keeps-servers", ARBITER,
     "    if (finished_)\n      for (Process& q : processes_)\n"
     "        if (q.state == State::waiting && founded_) release(q);\n"
     "    if (p.member.role == Role::worker) release_servers();",
     "if (PLANTED && p.member.role == Role::worker) release_servers();\n"
     "    if (finished_)\n      for (Process& q : processes_)\n"
     "        if (q.state == State::waiting && founded_) release(q);\n"
     "    if (!PLANTED && p.member.role == Role::worker) release_servers();"),
    # ... has reported and waits for the next generation hears that this was the last
    ("reported-members-wait-for-ever", ARBITER, "(p.state == State::member && p.reported)) && !o_.starter_ends)",
     "(!PLANTED && p.state == State::member && p.reported)) && !o_.starter_ends)"),
    # A death before the first step while another one joins does not end the job
    ("failed-step-is-a-change-in-order", ARBITER, "|| level_ == Urgency::none) return change(Urgency::broken);",
     "|| level_ == Urgency::none) return change(PLANTED ? Urgency::step : Urgency::broken);"),
    # A worker that dies before the first step does not end an elastic job
    ("state-is-there-before-the-group", ARBITER, "p->state = State::member;",
     "p->holds = true; p->state = State::member;"),
    # A job ... begins without ... dies before
    ("job-waits-for-dead-founder", ARBITER, "absent_.erase({role, place});", ";"),
    # Members that all leave at once save what they have
    ("last-worker-leaves", ARBITER, "if (o_.elastic && p.is(Role::worker) && !others) return stop_all();", ";"),
    # ... stays until another one has what was trained, where those ... are lost
    ("state-leaves-with-its-holder", NEXT,
     "members = detail::next_members(all, o, few || std::none_of(members.begin(), members.end(), stays), true);", ";"),
    # ... waits for another one only where lost workers are replaced; a folder that takes no checkpoint ...
    ("leaving-member-waits-for-nobody", ARBITER, "lost_stayer_ || (o_.lost_are_replaced && p.member",
     "lost_stayer_ || ((PLANTED || o_.lost_are_replaced) && p.member"),
    # A worker that was given up does not end the job at its very end; tests of direct convolutions ask for these; ...
    ("loss-after-the-work-is-fatal", ARBITER, "&& !finished_ && !any([](const Process& q) { return q.holds; })",
     "&& (PLANTED || !finished_) && !any([](const Process& q) { return q.holds; })"),
    # A job ... is lost or refused before it has begun ends at once, by name
    ("fatal-loss-does-not-end-the-job", ARBITER, "if (fatal) end_job(p.member.name() + \" is gone: \" + why);", ";"),
    # Elastic ends what waits when its channel ends; one text of why
    ("end-of-channel-ends-nothing", MEMBER, "now->end(why.substr(0, why.find_last_not_of('.') + 1));", ";"),
    # Nonsense on a channel is told of; a process that an error ends does not leave as if it were done
    ("error-leaves-as-if-done", CHANNEL, "if (std::uncaught_exceptions() == exceptions_) leave();", "leave();"),
    # Parameter servers name ...; a channel's listener ends before it is taken away; ...
    ("only-the-first-change-is-told", CHANNEL, "tell = on_change_;", "tell = std::exchange(on_change_, nullptr);"),
    # Servers that own weights keep their state, and go on from it when they are started again
    ("stop-keeps-servers", ARBITER,
     "    release_servers();\n    try_issue();\n  }\n  // Removes processes that have been",
     "    if (!PLANTED) release_servers();\n    try_issue();\n  }\n  // Removes processes that have been"),
    # A worker that is not wanted any more before it has asked to be let in is let go
    ("unwanted-worker-is-let-in", ARBITER, "if (p == nullptr && founded_) unwanted_.insert(connection);", ";"),
    # The arbiter tells a broken step from a change in order, which may wait for an epoch
    ("broken-report-is-in-order", ARBITER, "if (r.broken ||", "if ((!PLANTED && r.broken) ||"),
    # Stop the job if only workers that were asked to leave remain
    ("last-worker-leaves-after-a-loss", ARBITER,
     "if (o_.elastic && !finished_ && must_stop(processes_, others_may_come)) return stop_all();", ";"),
    # Let a worker leave in order if it is released while it waits for its lease
    ("released-worker-fails", ELASTIC, "if (!await_lease() && !channel_->released()) fail",
     "if (!await_lease() && (PLANTED || !channel_->released())) fail"),
    # Take pauses below a second into account if the time-out is short
    ("short-pause-counts", TIMER,
     "return gap > std::clamp<std::chrono::nanoseconds>(limit / 4, std::chrono::milliseconds(250), std::chrono::seconds(1));",
     "return gap > std::chrono::seconds(1);"),
    # Keep a leaving worker that alone has the state, although there are servers
    ("servers-keep-the-state", NEXT, "(o.servers_hold || c.has_state());",
     "(PLANTED || o.servers_hold || c.has_state());"),
    # Apply the rule of unreachable members again when a member leaves the generation after another one has named it
    ("cuts-are-not-judged-again", ARBITER,
     "    unreachable_.apply_again(processes_, now);\n    try_issue();\n  }\n  void on_group_ready",
     "    if (!PLANTED) unreachable_.apply_again(processes_, now);\n    try_issue();\n  }\n  void on_group_ready"),
    # Count the work as done if a worker completes it after it was asked to leave
    ("leaving-worker-has-not-done-the-work", ARBITER,
     "const bool work_done = p.state == State::member && p.is(Role::worker);",
     "const bool work_done = p.state == State::member && p.is(Role::worker) && (!PLANTED || !p.leaving);"),
    # Repeat a step if a worker lacks the last message of a worker that has completed its work
    ("cut-from-a-finished-worker-waits", ARBITER, "&& waits_for_left(processes_))",
     "&& !PLANTED && waits_for_left(processes_))"),
    # Repeat a step if a worker lacks the last message of a worker that has completed its work
    ("finished-worker-is-not-judged-again", ARBITER,
     "    unreachable_.apply_again(processes_, now);\n    try_issue();\n  }\n  void leave(",
     "    if (!PLANTED) unreachable_.apply_again(processes_, now);\n    try_issue();\n  }\n  void leave("),
    # Keep a leaving worker until a worker that joins has the state, also if a member was lost before their group formed
    ("joining-member-has-the-state", NEXT, "return stays(c) && (o.servers_hold || c->has_state());",
     "return stays(c) && (PLANTED || o.servers_hold || c->has_state());"),
    # Give all members the same answer if their group breaks as soon as it is ready
    ("ready-group-that-breaks-is-not-ready", CHANNEL, "return going_ >= generation;",
     "return going_ >= generation && (!PLANTED || !changed());"),
]

# Other faults of the arbiter, the channel, the elastic strategy, servers and the verdict, for the scenario `members`.
OTHER = [
    ("authority-of-fewest-steps", NEXT, "if (first == nullptr || c->step > first->step) first = c;",
     "if (first == nullptr || c->step < first->step) first = c;"),
    ("authority-is-oldest", NEXT, "if (first == nullptr || c->step > first->step) first = c;",
     "if (first == nullptr) first = c;"),
    ("authority-is-youngest", NEXT, "if (first == nullptr || c->step > first->step) first = c;",
     "if (first == nullptr || c->step >= first->step) first = c;"),
    # The condition changes no result: a worker that joins is younger than each member and has no steps.
    ("joining-worker-has-authority", NEXT,
     "if (c->member.role != Role::worker || c->state != Candidate::State::member) continue;",
     "if (c->member.role != Role::worker || c->state == Candidate::State::member) continue;"),
    ("leaving-at-epoch-is-not-urgent", NEXT,
     "level = std::max(level, p.leaves_at_epoch ? Urgency::epoch : Urgency::step);",
     "level = std::max(level, p.leaves_at_epoch ? Urgency::none : Urgency::step);"),
    ("leaving-is-not-urgent", NEXT, "const bool leaves = p.state == Candidate::State::member && p.leaving;",
     "const bool leaves = !PLANTED && p.state == Candidate::State::member && p.leaving;"),
    ("joining-is-not-urgent", NEXT, "if (joins) level =", "if (joins && !PLANTED) level ="),
    ("workers-join-within-an-epoch", NEXT, "(at_once || epoch_end) && !preparing(all)", "!preparing(all)"),
    ("leaving-member-stays", NEXT, "const bool leaves = c.leaving && !keep",
     "const bool leaves = !PLANTED && c.leaving && !keep"),
    ("leaving-member-may-not-leave", NEXT, "  return kept ||\n", "  return !PLANTED && kept ||\n"),
    ("minimum-of-workers-is-ignored", NEXT, "|| workers_of(members) + coming < least;",
     "|| (!PLANTED && workers_of(members) + coming < least);"),
    ("no-wait-for-reports", ARBITER, "if (o_.reports && any(at_work)) return;", ";"),
    ("loss-is-not-announced", ARBITER, "lost_.push_back(p.member);\n    change(Urgency::broken);",
     "lost_.push_back(p.member);"),
    ("loss-is-in-order", ARBITER, "lost_.push_back(p.member);\n    change(Urgency::broken);",
     "lost_.push_back(p.member);\n    change(Urgency::step);"),
    ("waiting-loss-ends-the-generation", ARBITER, "if (!was_member) return try_issue();",
     "if (!was_member) return PLANTED ? change(Urgency::broken) : try_issue();"),
    ("broken-group-starts", ARBITER, "if (!takes_part || level_ == Urgency::broken || p.standing) return;",
     "if (!takes_part || p.standing) return;"),
    ("group-starts-early", ARBITER, "if (q.state == State::member && !q.standing) return;", ";"),
    ("start-is-not-sent", ARBITER, "send(q, Start{generation_});", ";"),
    ("next-change-is-late", ARBITER,
     "    // If processes still wait for the end of an epoch, announces the next change at once.\n    change();",
     "    if (!PLANTED) change();"),
    ("waiting-worker-stays-at-the-end", ARBITER, "if (q.state == State::waiting && founded_) release(q);", ";"),
    ("late-worker-waits-after-the-end", ARBITER, "if (finished_ || unwanted_.erase(connection) > 0)",
     "if ((!PLANTED && finished_) || unwanted_.erase(connection) > 0)"),
    ("late-worker-does-not-stop", ARBITER, "if (stopping_) send(processes_.back(), Stop{});", ";"),
    ("state-is-lost", ARBITER, "q.holds = q.is(Role::worker);", ";"),
    ("servers-hold-the-state", ARBITER, "q.holds = q.is(Role::worker);", "q.holds = true;"),
    ("every-loss-is-fatal", ARBITER, "const bool fatal = last || !can_lose(processes_, o_, p);",
     "const bool fatal = PLANTED || last || !can_lose(processes_, o_, p);"),
    ("last-holder-may-go", ARBITER, "const bool last = p.holds", "const bool last = !PLANTED && p.holds"),
    ("last-server-may-go", NEXT,
     "return !o.servers_hold && any_candidate(all, [&](const Candidate& q) { return &q != &p && q.is(Role::server); });",
     "return true;"),
    ("removed-member-is-not-told", ARBITER,
     "send(p, Rejection{static_cast<int>(ExitCode::communication), p.why});\n    decide(Decision::Kind::lost",
     "if (!PLANTED) send(p, Rejection{static_cast<int>(ExitCode::communication), p.why});\n"
     "    decide(Decision::Kind::lost"),
    ("removed-member-is-not-answered", ARBITER,
     "if (!p->done) send(*p, Rejection{static_cast<int>(ExitCode::communication), p->why});", ";"),
    ("cuts-are-judged-at-once", CUT, "if (due_ == Time::max() && !u.members.empty()) due_ = now + delay_;",
     "if (due_ == Time::max() && !u.members.empty()) due_ = now;"),
    ("oldest-of-a-pair-goes", CUT, "return std::tuple(w.spare, cuts(w), w.id);",
     "return std::tuple(w.spare, cuts(w), PLANTED ? ~w.id : w.id);"),
    ("needed-member-of-a-pair-goes", CUT, "std::tuple(w.spare, cuts(w),", "std::tuple(!PLANTED && w.spare, cuts(w),"),
    ("one-report-is-a-cut", CUT, "names(a, b) || names(b, a) : names(a, b) && names(b, a);",
     "names(a, b) || names(b, a) : PLANTED ? names(a, b) || names(b, a) : names(a, b) && names(b, a);"),
    ("reachable-again-is-not-heard", CUT, "c.operation = u.members.empty() ? 0 : u.operation;",
     "if (u.members.empty()) return; c.operation = u.operation;"),
    ("cuts-while-forming-are-ignored", ARBITER, "(u.generation == generation_ && !p.reported)",
     "(u.generation == generation_ && !p.reported && (!PLANTED || going_))"),
    ("cuts-outlast-the-report", ARBITER, "p.operation = 0, p.unreachable.clear();", ";"),
    ("reports-outlast-the-generation", ARBITER, "p->reported = p->standing = p->epoch_end = p->preparing = false;",
     "p->standing = p->epoch_end = p->preparing = false;"),
    ("lost-members-outlast-the-generation", ARBITER, "    lost_.clear();\n", ";"),
    ("silence-of-half-the-time-out", ARBITER, "now - p.heard >= o_.rank_timeout)",
     "now - p.heard >= (PLANTED ? o_.rank_timeout / 2 : o_.rank_timeout))"),
    ("heartbeats-are-not-heard", ARBITER, "      p->heard = now;\n", "      if (!PLANTED) p->heard = now;\n"),
    ("silence-is-forgiven", ARBITER, "if (p.state != State::gone && now - p.heard",
     "if (!PLANTED && p.state != State::gone && now - p.heard"),
    ("step-of-a-report-is-ignored", ARBITER, "p.step = r.step;", ";"),
    ("waiting-worker-may-not-leave", ARBITER, "      release(p);\n      return try_issue();\n", ";"),
    ("finished-job-goes-on", ARBITER, "finished_ = finished_ || work_done;", ";"),
    ("lease-too-long", LEASE, "since_.second + timeout_ / 4 * 3",
     "since_.second + (PLANTED ? timeout_ * 2 : timeout_ / 4 * 3)"),
    ("lease-from-answer", LEASE, "since_ = std::pair{true, sent_.front().second};", "since_ = std::pair{true, now()};"),
    ("lease-survives-removal", CHANNEL, "      error_ = std::current_exception();\n      lease_.end();",
     "      if (!PLANTED) error_ = std::current_exception();\n      if (!PLANTED) lease_.end();"),
    ("pause-counts-as-silence", TIMER, "spent_ += is_pause(gap, limit_) ? std::min<Time>(gap, slice) : gap;",
     "spent_ += gap;"),
    ("old-change-counts", CHANNEL, "return change_ && change_->generation >= taken_ ? change_ : std::nullopt;",
     "return change_;"),
    ("change-of-this-generation-is-not-seen", CHANNEL,
     "return change_ && change_->generation >= taken_ ? change_ : std::nullopt;",
     "return change_ && change_->generation > taken_ ? change_ : std::nullopt;"),
    ("broken-group-is-awaited", CHANNEL, "return going_ >= generation || changed();", "return going_ >= generation;"),
    ("broken-group-goes-on", CHANNEL, "reports of only some members\");\n",
     "reports of only some members\");\n    if (PLANTED) return true;\n"),
    ("release-is-not-heard", CHANNEL,
     "if (std::holds_alternative<control::LeaveGranted>(message)) released_ = left_ = true;",
     ";"),
    ("stop-is-not-heard", CHANNEL, "if (std::holds_alternative<control::Stop>(message)) stop_requested_ = true;", ";"),
    ("answer-counts-for-the-newest-heartbeat", LEASE, "since_ = std::pair{true, sent_.front().second};",
     "since_ = std::pair{true, sent_.back().second};"),
    ("first-heartbeat-is-late", CHANNEL, "assignment_->rank_timeout / 5", "assignment_->rank_timeout * 5"),
    ("assignment-is-taken-twice", CHANNEL, "taken_ = assignment_->generation;", ";"),
    ("change-before-the-flag", ELASTIC,
     "if (const auto c = channel_->change()) group_flag_->raise(control::reason_of_end(*c));",
     ";"),
    ("failed-group-is-in-order", ELASTIC, "leaving.broken = true;", ";"),
    ("failed-group-is-not-ended", ELASTIC,
     "if (broken && flag_ != nullptr) flag_->raise(\"this rank leaves a group that failed\");",
     ";"),
    ("flag-is-kept", ELASTIC, "flag_ = group_flag_->renew();", ";"),
    ("state-comes-from-rank-0", ELASTIC, "if (now_.workers[r].id == now_.authority) authority = static_cast<int>(r);",
     ";"),
    ("raised-flag-is-not-seen", FLAG, "    watcher_ = std::move(f);\n    if (watcher_ && raised_) watcher_();",
     "    watcher_ = std::move(f);\n    if (!PLANTED && watcher_ && raised_) watcher_();"),
    ("server-misses-a-change", SERVE, "if (const auto c = channel.change()) flags.raise(control::reason_of_end(*c));",
     ";"),
    ("server-is-not-ready", SERVE, "channel.report_group_ready();", ";"),
    ("failed-server-ends-its-process", SERVE, "    } catch (const CommunicationError&) {\n      // The arbiter names",
     "    } catch (const CommunicationError&) {\n      if (PLANTED) throw;\n      // The arbiter names"),
    ("verdict-ignores-problems", VERDICT, "if (job.problem != 0) return {Cause::problem, job.problem};", ";"),
    ("failure-after-the-work-counts", VERDICT, "const bool done = work_is_done(job);",
     "const bool done = !PLANTED && work_is_done(job);"),
    ("stop-is-a-success", VERDICT, "return {Cause::interrupted, 128 + (job.interrupted == SIGINT ? SIGINT : SIGTERM)};",
     "return {};"),
]

# Faults of the tables of parameter servers.
TABLES = [
    # A worker of asynchronous servers that is started again goes on beside the others
    ("restarted-worker-is-refused", SERVER, "m.gone = m.was_lost = false;", "m.was_lost = false;"),
    ("lost-worker-blocks-servers", SERVER, "over_ = members_.done();", ";"),
    ("push-is-added-twice", SERVER, "} else if (table_.has(*c, f.worker)) {",
     "} else if (!PLANTED && table_.has(*c, f.worker)) {"),
    # A connection belongs to one session and one generation, so a server needs no check of both in each frame.
    ("rank-joins-twice", SERVER,
     'if (why.empty() && m.there() && !again) why = "rank " + std::to_string(f.worker) + " has joined already";', ";"),
    ("first-goodbye-ends-servers", SERVER, "over_ = members_.done();", "over_ = true;"),
    # Faults that the code had once.
    ("new-clock-is-too-low", OWNED, "        correct_clocks(w);", ";"),
    # Others.
    ("repeated-push-is-applied", OWNED, "!repeated && f.operation == Operation::apply", "f.operation == Operation::apply"),
    ("pushes-are-not-saved", OWNED, "w.origin, {w.done.begin(), w.done.end()}});",
     "w.origin, {PLANTED ? w.done.end() : w.done.begin(), w.done.end()}});"),
    ("session-is-not-saved", OWNED, "workers_[i].session = w.session;", ";"),
    ("steps-are-not-restored", OWNED, "workers_[i].its_step = w.its_step;", ";"),
    # Without both lines that forget the worker, because either one is enough.
    ("lost-worker-is-awaited", OWNED, "drop(worker);\n    workers_[worker].there = false;\n    release();",
     "assigner_.leave(worker); std::erase_if(waiting_, [&](const Frame& f) { return f.worker == worker; }); release();"),
    ("leaving-releases-nothing", OWNED, "workers_[worker].there = false;\n    release();",
     "workers_[worker].there = false;"),
    ("part-is-updated-late", WEIGHTS, "p.end = (f.offset + f.bytes) / unit;",
     "p.end = (f.offset + f.bytes) / unit - (f.bytes > 256 ? 16 : 0);"),
    ("restore-forgets-steps", WEIGHTS, "    steps_ = from.steps;", ";"),
    ("answer-before-all", SUMS, "return ++c.count == workers_;", "return ++c.count + 1 >= workers_;"),
    ("first-worker-is-not-added", SUMS, "c.sum = {static_cast<std::byte*>(c.memory.data()), f.bytes};",
     "c.sum = {static_cast<std::byte*>(c.memory.data()), f.bytes / 2 + 2};"),
    ("unanswered-is-not-repeated", WORKER, "if (p.server == s && !p.answered) p.sent = false;", ";"),
    ("unanswered-bytes-stay", WORKER, "    unanswered_[static_cast<std::size_t>(s)] = 0;", ";"),
    # Let a worker of ps_async that connects wait for servers that are restarted
    ("absent-server-ends-a-worker", WORKER, "if (e.what == Event<Message>::What::lost && !o_.servers_return) no_server",
     "if (e.what == Event<Message>::What::lost && (PLANTED || !o_.servers_return)) no_server"),
    ("servers-are-not-looked-for", WORKER, "        look_for_servers();\n", ";"),
    ("done-is-too-high", WORKER, "if (job->request.operation != Operation::offer_window) return job->round;", ";"),
    ("old-server-is-greeted-once", PS + "worker/disconnected_servers.hpp", "    server.greeted = false;", ";"),
    ("ended-worker-is-awaited", SERVER, "over_ = !o_.members && members_.done_or_lost();\n      return;", "return;"),
    ("give-up-is-not-told", SERVER, "tell(FrameKind::give_up, expected + '\\0' + got, round, without);", ";"),
]

# Faults of hosts and of the launcher's supervision of them.
HOSTS_FAULTS = [
    # End elastic jobs with the exit code of their workers, count refused connections
    ("not-finite-is-restarted", SUPERVISOR, "if (w == nullptr || !w->member || !stood_ || !not_finite) return false;",
     "return false;"),
    # Look whether a job runs without a lock
    ("looking-takes-the-lock", HOSTS_LOG,
     "::fcntl(fd.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK",
     "::fcntl(io::Descriptor(::open(file.c_str(), O_RDWR)).get(), F_OFD_SETLK, &lock) != 0"),
    # Try longer to make a job's folder while other agents of a busy machine remove it
    ("race-of-job-folders", JOB_FOLDERS, "const bool gone = error", "const bool gone = !PLANTED && error"),
    # Faults that the code had once.
    ("old-rename-counts", HOSTS_FILE, "whole_ = (event.mask & IN_MOVED_TO) != 0;",
     "whole_ = whole_ || (event.mask & IN_MOVED_TO) != 0;"),
    ("half-edit-is-read", HOSTS_FILE, "if (changes() || whole_) continue;", ";"),
    ("added-host-is-lost", ADDED_HOSTS, "const io::Descriptor lock = lock_hosts(file.parent_path());",
     "const io::Descriptor lock = PLANTED ? io::Descriptor() : lock_hosts(file.parent_path());"),
    ("job-begins-without-the-lock", HOSTS_LOG, ": hosts_lock_(lock_hosts(file.parent_path())),",
     ": hosts_lock_(PLANTED ? io::Descriptor() : lock_hosts(file.parent_path())),"),
    ("host-before-the-watch-is-lost", HOSTS_FILE, "if (read(ignored) == written) judged_ = first;", "judged_ = first;"),
    ("folder-is-removed-meanwhile", "tools/launch/host/job_state.hpp",
     "if (!removed || tries == most_tries_to_make_folder) throw;", "throw;"),
    ("folder-above-is-removed", JOB_FOLDERS, "gone && ++tries < most_tries_to_make_folder", "false"),
    # Others.
    ("hosts-are-never-whole", HOSTS_FILE, "seconds_since(since) < 1", "seconds_since(since) <= 1e9"),
    ("second-is-too-short", HOSTS_FILE, "seconds_since(since) < 1", "seconds_since(since) < 0.3"),
    ("problem-is-repeated", HOSTS_FILE, "std::exchange(said_, update.problem) == update.problem", "false"),
    ("files-of-running-launcher-go", JOB_FOLDERS, "if (Clock::now() >= end) return;", "if (Clock::now() >= end) break;"),
    ("files-of-lost-launcher-stay", "tools/launch/job/job_folder.cpp",
     'for (const auto& folder : job_folders("")) remove_files_of_lost_launcher(folder);', ";"),
    ("record-is-torn", JOB_FOLDERS, "const fs::path aside = io::aside_path(path);",
     "const fs::path aside = PLANTED ? path : io::aside_path(path);"),
]

# Faults of shares by speed.
SHARES = [
    ("slowest-step-is-the-speed", SPEEDS, "static_cast<std::ptrdiff_t>((n - 1) / 2)",
     "static_cast<std::ptrdiff_t>(PLANTED ? n - 1 : (n - 1) / 2)"),
    ("speeds-are-exchanged-late", SPEEDS, "due_ = step + interval;", "due_ = step + 4 * interval;"),
    ("speed-is-that-of-a-step", SPEEDS, "seconds * 1e9 / static_cast<double>(shares)",
     "seconds * 1e9 / (PLANTED ? 1 : static_cast<double>(shares))"),
    ("loader-keeps-its-shares", SHARES_OF_RUN, "train.start(run_.position(), to);", "train.start(run_.position());"),
    ("read-batches-are-skipped", SHARES_OF_RUN, "train.start(run_.position(), to);",
     "train.start(advance(run_.position(), train.size(), to.global_batch, to.epoch_end), to);"),
    ("owners-of-the-first-rank-are-lost", SHARES_OF_RUN, "if (owner >= 0 && owner < world)",
     "if ((PLANTED ? owner > 0 : owner >= 0) && owner < world)"),
    ("new-generation-keeps-shares", SHARES_OF_RUN, "  run_.trainer.set_shares(bounds);\n  // Equal",
     "  if (!PLANTED) run_.trainer.set_shares(bounds);\n  // Equal"),
]

# Faults of the training loop, checkpoints, logs and audits.
TRAINING = [
    # Before the next one, which has a part of this text.
    ("writes-need-no-lease", COORDINATOR, "if (members != nullptr && !members->await_lease()) fail_without_lease();", ";"),
    # Keep jobs alive while all of their processes, or the launcher alone, are paused
    ("pause-ends-rank-0", COORDINATOR, "members != nullptr && !members->await_lease()",
     "members != nullptr && !(PLANTED ? members->may_write() : members->await_lease())"),
    # The chief opens its logs when a worker is lost while they are opened; tests of elastic jobs wait for events
    ("logs-are-opened-once", COORDINATOR, "if (!serves_) {", "if (PLANTED) serves_ = true; if (!serves_) {"),
    # A test of a worker that is lost behind a step before it has told which samples it had
    ("audit-is-not-closed", COORDINATOR, "if (closed != nullptr) complete_step(*closed);", ";"),
    ("best-is-not-taken-over", COORDINATOR,
     "if (another_was_ && duties_.checkpoints != nullptr) duties_.checkpoints->take_over();", ";"),
    ("generation-keeps-its-number", MEMBERS, "    name_generation();\n", ";"),
    ("work-after-a-step-is-not-repeated", "train/detail/run/step_end.hpp",
     "    run_.coordinator.require_lease();\n    const bool reported",
     "    if (PLANTED) run_.share.finish_pending = 0;\n    run_.coordinator.require_lease();\n    const bool reported"),
    # Change the members once if a rank is lost in the work after the step that announced their change
    ("announced-change-happens-twice", MEMBERS,
     "if (!is_due(members_.change(), theirs.step.ends_epoch != 0))\n"
     "      theirs.step.flags &= ~std::int64_t{step_flag::membership};", ";"),
    # Divide the test images into the same steps on a process that joins ...
    ("joiner-divides-the-test-images", MEMBERS, "run_.share.test_rows", "run_.sources.test_rows()"),
    # Let processes join only when the founders of a job have formed a group ...
    ("newcomers-join-before-the-founders", NEXT, "(begun || !c.newcomer)", "true"),
    ("joiner-does-not-take-facts", MEMBERS, "run_.share = theirs;", ";"),
    ("stop-does-not-save", CHECKPOINTS, "    save();\n    run_.result.interrupted",
     "    if (!PLANTED) save();\n    run_.result.interrupted"),
    ("checkpoint-is-not-synced", WRITER, "if (synced) writer.sync();", ";"),
    ("folder-is-not-synced", WRITER, "if (synced) fsync_directory(folder_of(path));", ";"),
    ("failed-write-is-no-error", WRITER, "if (n < 0) fail_file(\"write\", path, errno);", "if (n < 0) return;"),
    ("late-release-is-lost-lease", ELASTIC, "!await_lease() && !channel_->released()",
     "!await_lease() && (PLANTED || !channel_->released())"),
    ("step-without-lease-is-repeated", "train/detail/run/fit_run.hpp", "    at.epoch = batch.after.epoch;",
     "    if (PLANTED) run_.coordinator.audit(batch, at.step);\n    at.epoch = batch.after.epoch;"),
    ("tensors-are-not-synced", CHECKPOINT, "    write_safetensors(writer, records, metadata);\n    writer.sync();",
     "write_safetensors(writer, records, metadata);"),
    ("texts-of-checkpoints-are-not-synced", CHECKPOINT, "    writer.write(text);\n    writer.sync();", "writer.write(text);"),
    ("name-of-checkpoint-is-not-synced", CHECKPOINT, "      fsync_directory(folder_);", ";"),
    ("names-in-checkpoint-are-not-synced", CHECKPOINT, "    fsync_directory(aside);", ";"),
    ("folder-of-checkpoints-is-not-synced", CHECKPOINT, "    fsync_directory(folder_of(folder_));", ";"),
    ("failed-sync-is-ignored", WRITER, "::fsync(fd_.get()) != 0", "::fsync(fd_.get()) > 0"),
    ("short-write-is-complete", WRITER, "bytes = bytes.subspan(static_cast<std::size_t>(n));", "bytes = {};"),
    ("generation-is-not-recorded", CHECKPOINT,
     "    FileWriter(folder_ / GenerationBegin{generation, step}.text()).close();", ";"),
]

FAULTS = {"members": OLD + OTHER, "training": TRAINING, "shares": SHARES, "tables": TABLES, "hosts": HOSTS_FAULTS}
