"""Bugs to plant, by name: each is one replacement in the product, and the tests that have to notice it.

The suite fails if one of them survives (test_mutants.py). When the code around one changes, the replacement is not found
and that fails too: then the same bug is to be written anew for the new code.
"""

from __future__ import annotations

import msgspec

EXPLORED = "tests/crash/test_explorer.py::test_every_power_cut_of_a_run_is_resumed_to_the_same_end"
KILLED_AND_CUT = "tests/crash/test_explorer.py::test_the_same_for_every_state_of_a_small_run"
FAILING_ONCE = "tests/crash/test_explorer.py::test_every_operation_fails[EIO-once]"
DAMAGE = "tests/crash/test_damage.py"
KILLED = "tests/crash/test_kill_points.py::test_killed_before_any_call_then_resumed_equals_never_killed[0]"
FILES = "durable/files.py"
LOCK = "durable/lock.py"


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """One bug."""

    name: str
    file: str  # below src/rerail
    old: str  # occurs once
    new: str
    tests: tuple[str, ...]
    also: tuple[tuple[str, str, str], ...] = ()  # file, old, new: where one place is not enough


MUTANTS = (
    # Durability
    Mutant(
        name="no-fsync",
        file=FILES,
        old="        os.fdatasync(fd)\n",
        new="        pass\n",
        tests=(EXPLORED,),
    ),
    Mutant(
        name="no-directory-fsync",
        file=FILES,
        old="        os.fsync(fd)\n",
        new="        pass\n",
        tests=(EXPLORED,),
    ),
    Mutant(
        name="fsync-retried",
        file=FILES,
        old="        os.fdatasync(fd)\n",
        new="        try:\n            os.fdatasync(fd)\n        except OSError:\n            os.fdatasync(fd)\n",
        tests=(FAILING_ONCE,),
    ),
    Mutant(
        name="short-write-ignored",
        file=FILES,
        old="    while written < len(data):\n",
        new="    while False:\n",
        tests=("tests/crash/test_explorer.py::test_every_write_is_short",),
    ),
    Mutant(
        name="directory-published-before-its-names-are-durable",
        file=FILES,
        old="    sync_dir(path)\n    if os.path.lexists(target):\n",
        new="    if os.path.lexists(target):\n",
        tests=(EXPLORED,),
    ),
    Mutant(
        name="new-files-not-synced",
        file=FILES,
        old="        write_all(fd, data)\n        sync(fd)\n    finally:\n",
        new="        write_all(fd, data)\n    finally:\n",
        tests=(EXPLORED,),
    ),
    Mutant(
        name="way-to-the-runs-not-anchored",
        file="stores/directory.py",
        old="        durable.sync_dir(self.root)\n        durable.sync_dir(self._runs)\n",
        new="",
        tests=(KILLED_AND_CUT,),
    ),
    Mutant(
        name="recovered-records-not-synced",
        file="stores/writer.py",
        old="            durable.sync_existing(os.path.join(self.path, segments.file_name(self._acked.segment)))\n",
        new="",
        tests=(KILLED_AND_CUT,),
    ),
    Mutant(
        name="name-of-the-recovered-segment-not-synced",
        file="stores/writer.py",
        old="            durable.sync_dir(self.path)  # its name too: the next segment must never be there without it\n",
        new="",
        tests=(KILLED_AND_CUT,),
    ),
    Mutant(
        name="artifact-not-synced",
        file="durable/copies.py",
        old="            sync(fd)\n        finally:\n            os.close(fd)\n    for directory in directories:\n",
        new="            pass\n        finally:\n            os.close(fd)\n    for directory in directories:\n",
        tests=("tests/crash/test_power_cut.py::test_a_power_cut_leaves_no_claim_without_data",),
    ),
    # What is said
    Mutant(
        name="acknowledged-early",
        file="engine/recorder.py",
        old="        self._sent += staged\n",
        new="        self._sent += staged\n        for reporter in self._reporters:\n            for seq, event in staged:\n"
        "                reporter.show(seq, event, self.state)\n",
        tests=(EXPLORED,),
    ),
    Mutant(
        name="state-error-swallowed",
        file="stores/writer.py",
        old="        except OSError as error:\n            self._move(error)\n",
        new="        except OSError:\n            self._pending.clear()\n",
        tests=(FAILING_ONCE,),
    ),
    # What is believed
    Mutant(
        name="torn-taken-for-damage",
        file="stores/segments.py",
        old="    if sealed or journal.was_synced(data, at) or (covered is not None and covered.seq > at.seq):\n",
        new="    if True:\n",
        tests=(EXPLORED,),
    ),
    Mutant(
        name="damage-taken-for-torn",
        file="stores/segments.py",
        old="    if sealed or journal.was_synced(data, at) or (covered is not None and covered.seq > at.seq):\n",
        new="    if False:\n",
        tests=("tests/stores/test_journal.py",),
    ),
    Mutant(
        name="chain-not-checked",
        file="stores/journal.py",
        old='    if stored != chained(here.sum, line[_BODY:]).encode():\n        return "its checksum does not match"\n',
        new="",
        tests=("tests/stores/test_journal.py",),
    ),
    Mutant(
        name="snapshot-trusted-over-journal",
        file="stores/segments.py",
        old="        if covered.sha256.get(str(segment.number)) != digest:\n            return False\n",
        new="",
        tests=(DAMAGE + "::test_a_flip_in_the_middle_is_refused_and_changes_nothing_then_repaired",),
    ),
    Mutant(
        name="journal-shorter-than-snapshot-unnoticed",
        file="stores/segments.py",
        old="    if covered is not None and here.seq < covered.seq:\n",
        new="    if False:\n",
        tests=(DAMAGE,),
    ),
    Mutant(
        name="superseded-writer-counts",
        file="stores/segments.py",
        old="        previous.sealed = after.length\n",
        new="        previous.sealed = len(previous.data.rstrip()) + 1\n",
        tests=("tests/stores/test_journal.py",),
    ),
    # Who may write
    Mutant(
        name="lock-unlinked",
        file=LOCK,
        old="            if fd >= 0:\n                os.close(fd)\n        self._fd = self._former_fd = -1\n",
        new='            if fd >= 0:\n                os.unlink(os.readlink(f"/proc/self/fd/{fd}"))\n'
        "                os.close(fd)\n        self._fd = self._former_fd = -1\n",
        tests=("tests/stores/test_directory.py",),
    ),
    Mutant(
        name="lock-inherited-by-steps",
        file=LOCK,
        old="        _held.add(self)\n",
        new="        _held.add(self)\n        os.set_inheritable(self._fd, True)\n",
        also=(("executors/local.py", "        actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in _inherited()]\n", ""),),
        tests=("tests/crash/test_catalogue_limits.py::test_a_step_holds_no_descriptor_but_its_streams",),
    ),
    Mutant(
        name="lock-kept-by-forked-children",
        file=LOCK,
        old="        lock.release()\n\n\nos.register_at_fork",
        new="        pass\n\n\nos.register_at_fork",
        tests=("tests/stores/test_directory.py",),
    ),
    Mutant(
        name="links-followed",
        file=FILES,
        old="NOFOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC\n",
        new="NOFOLLOW = os.O_CLOEXEC\n",
        tests=("tests/stores/test_directory.py",),
    ),
    Mutant(
        name="deleted-in-place",
        file="stores/directory.py",
        old="            durable.move_file(path, gone)\n            durable.remove_tree(gone)\n",
        new="            durable.remove_tree(path)\n",
        tests=("tests/crash/test_kill_points.py::test_a_deletion_that_is_cut_off_leaves_a_run_or_none",),
    ),
    # What runs again, and as what
    Mutant(
        name="attempt-number-used-twice",
        file="engine/runner.py",
        old="            self._stage_start(task, unit.attempts + 1)\n",
        new="            self._stage_start(task, max(unit.attempts, 1))\n",
        tests=(KILLED,),
    ),
    Mutant(
        name="cutoff-on-nothing",
        file="core/state.py",
        old="    comparable = bool(event.outputs or event.artifacts)\n",
        new="    comparable = True\n",
        tests=("tests/engine/test_runner.py::test_a_step_that_hands_out_nothing_is_never_the_same",),
    ),
    Mutant(
        name="cutoff-on-anything",
        file="core/state.py",
        old="    if event.outputs != unit.outputs or len(event.artifacts) != len(unit.artifacts):\n        return False\n",
        new="    return True\n",
        tests=("tests/engine/test_runner.py::test_an_edited_pipeline_reruns_what_changed_and_what_depends_on_it",),
    ),
    Mutant(
        name="orphans-live-on",
        file="executors/watchdog.py",
        old="                processes.kill_tagged(self._mark, self._table.known, pauses=_AGAIN)\n",
        new="                pass\n",
        tests=("tests/e2e/test_processes.py::test_no_process_outlives_rerail",),
    ),
    Mutant(
        name="disk-full-blamed-on-the-step",
        file="artifacts/worker.py",
        old="                    unkept=self._is_ours(error),\n",
        new="",
        tests=("tests/crash/test_unwritable.py::test_any_state_call_fails[errno-0]",),
    ),
    Mutant(
        name="only-a-recorded-failure-of-a-map-counts",
        file="core/planner.py",
        old='    if unit.status == "failed":\n        return True\n    items, action',
        new='    if unit.status != "nothing":\n        return unit.status == "failed"\n    items, action',
        tests=("tests/crash/test_unrecorded_failures.py",),
    ),
    Mutant(
        name="a-lost-file-hides-that-a-map-failed",
        file="engine/recovery.py",
        old=" or unit in self._had_failed:\n",
        new=":\n",
        tests=("tests/crash/test_unrecorded_failures.py",),
    ),
    # Money and waiting
    Mutant(
        name="killed-attempts-cost-nothing",
        file="core/inflight.py",
        old="    usage = trace.usage\n",
        new="    usage = Usage()\n",
        tests=("tests/cli/commands/test_cost.py::test_the_ledger_counts_what_failed_and_what_was_killed",),
    ),
    Mutant(
        name="budgets-of-steps-forget-earlier-lives",
        file="engine/admission.py",
        old="        self.budgets.restore()\n",
        new="",
        tests=("tests/engine/test_budgets.py::test_an_item_has_a_budget_and_does_not_hold_the_others_up",),
    ),
    Mutant(
        name="nothing-is-saved-of-long-steps",
        file="engine/runner.py",
        old="        record_progress(self.spec, self.recorder, self.clock, self.running)\n",
        new="",
        tests=("tests/engine/test_budgets.py::test_what_a_long_step_had_done_and_cost_survives_a_power_cut",),
    ),
    Mutant(
        name="a-quota-is-forgotten-by-the-next-life",
        file="engine/admission.py",
        old="                if left > 0:\n                    if not throttle",
        new="                if left > 1e9:\n                    if not throttle",
        tests=("tests/e2e/test_rate_limits.py::test_a_clock_that_was_set_back_makes_no_wait_longer",),
    ),
    Mutant(
        name="an-old-letter-overrules-a-newer-answer",
        file="engine/approvals.py",
        old="            if _is_newer(approval, record) and record.status",
        new="            if record.status",
        tests=("tests/e2e/test_approvals.py::test_the_last_word_counts_however_it_arrived",),
    ),
    Mutant(
        name="accounts-go-although-nothing-was-recorded",
        file="executors/channels.py",
        old="        if recorded:\n            self._remains.remove()\n",
        new="        if True:\n            self._remains.remove()\n",
        tests=("tests/app/test_traces.py::test_a_step_whose_end_could_not_be_recorded_has_cost_what_it_cost",),
    ),
    # Found by others, who planted them first
    Mutant(
        name="restored-file-not-synced",
        file="durable/copies.py",
        old="            os.fchmod(fd, mode or 0o644)\n            sync(fd)\n",
        new="            os.fchmod(fd, mode or 0o644)\n",
        tests=("tests/crash/test_power_cut_mending.py::test_a_power_cut_while_files_are_put_back",),
    ),
    Mutant(
        name="moved-file-not-synced",
        file=FILES,
        old="    os.rename(path, target)\n    sync_dir(os.path.dirname(target))\n    if os",
        new="    os.rename(path, target)\n    if os",
        tests=("tests/crash/test_power_cut_mending.py::test_a_power_cut_after_a_run_was_deleted_does_not_bring_it_back",),
    ),
    Mutant(
        name="replaced-file-not-durable",
        file=FILES,
        old="    sync_dir(os.path.dirname(path))\n\n\ndef temporary_of",
        new="\n\ndef temporary_of",
        tests=("tests/crash/test_power_cut_mending.py::test_a_power_cut_loses_no_letter_that_was_put",),
    ),
    Mutant(
        name="rot-in-the-last-batch-taken-for-a-tear",
        file="stores/journal.py",
        old="    return any(not _fault(line, Position(",
        new="    return False and any(not _fault(line, Position(",
        tests=("tests/crash/test_damage.py::test_rot_in_what_was_written_last_is_no_tear",),
    ),
    Mutant(
        name="older-segments-are-believed",
        file="stores/segments.py",
        old="        if segment.number > covered.segment:\n            break\n",
        new="        if segment.number != covered.segment:\n            continue\n",
        tests=("tests/crash/test_damage.py::test_rot_in_the_journal_of_an_earlier_life_is_noticed",),
    ),
    Mutant(
        name="repair-takes-the-snapshot-of-another-run",
        file="stores/repair.py",
        old="            if checkpoint.run_id == run_id:\n                found",
        new="            if checkpoint:\n                found",
        tests=("tests/stores/test_repair.py::test_a_repair_takes_no_snapshot_of_another_run",),
    ),
    Mutant(
        name="repair-leaves-no-checkpoint",
        file="stores/repair.py",
        old="    _save(path, evidence, snapshots.encode(saved, covered))\n    segments.record_newest(path, number)\n",
        new="",
        tests=("tests/crash/test_two_damages.py::test_what_a_repair_goes_on_from_is_proved_twice",),
    ),
    Mutant(
        name="nobody-bears-witness",
        file="stores/segments.py",
        old="        return os.lstat(os.path.join(directory, BEGUN)).st_size\n",
        new="        return 0\n",
        tests=("tests/crash/test_two_damages.py::test_two_damages_in_a_row_are_refused_or_told[0-False]",),
    ),
    Mutant(
        name="events-pass-unmasked",
        file="engine/recorder.py",
        old="        masked = mask.struct(event)\n",
        new="        masked = event\n",
        tests=("tests/e2e/test_secret_leaks.py::test_sealing_refuses_a_name_that_holds_a_secret",),
        also=(("engine/completion.py", "self._spec.mask.struct(outcome)", "outcome"),),
    ),
    Mutant(
        name="sealing-takes-any-name",
        file="artifacts/seal.py",
        old="        _require_no_secret_names(artifact, found, means.mask)\n",
        new="",
        tests=("tests/e2e/test_secret_leaks.py::test_sealing_refuses_a_name_that_holds_a_secret",),
    ),
    Mutant(
        name="a-letter-is-gone-once-it-is-read",
        file="stores/inbox.py",
        old="        self._taken.append(path)\n",
        new="        durable.remove_file(path)\n",
        tests=("tests/stores/test_inbox.py::test_a_letter_is_there_until_what_it_says_is_recorded",),
    ),
    Mutant(
        name="a-watchdog-that-was-killed-is-not-replaced",
        file="executors/local.py",
        old="        if (killed or self.watchdogs.due) and self.watchdogs.replace():\n",
        new="        if (killed or self.watchdogs.due) and self.watchdogs._bury():\n",
        tests=("tests/crash/test_watchdogs.py::test_nothing_survives_whoever_is_killed_in_whatever_order",),
    ),
    Mutant(
        name="a-watchdog-has-the-name-of-rerail",
        file="executors/watchdog.py",
        old="            _rename(processes.guard_line(NAMES[number], parent), NAMES[number])\n",
        new="",
        tests=("tests/crash/test_watchdogs.py::test_nothing_survives_whoever_is_killed_in_whatever_order",),
    ),
    Mutant(
        name="a-step-that-still-runs-is-marked",
        file="app/interventions.py",
        old="        end_processes(log)\n        yield log\n",
        new="        yield log\n",
        tests=("tests/crash/test_watchdogs.py::test_a_step_that_still_runs_is_ended_before_it_is_marked",),
    ),
    Mutant(
        name="patterns-go-through-links",
        file="walker.py",
        old="                if entry.is_dir(follow_symlinks=False):\n",
        new="                if entry.is_dir():\n",
        tests=("tests/test_walker.py::test_links_around_and_out_of_a_tree_are_not_followed",),
    ),
    Mutant(
        name="the-third-signal-waits-for-the-interpreter",
        file="executors/watchdog.py",
        old="                os.kill(parent, signal.SIGKILL)\n",
        new="                pass\n",
        tests=("tests/crash/test_signals.py::test_three_signals_end_the_process_whatever_it_is_doing",),
    ),
    Mutant(
        name="the-watchdog-remembers-who-has-ended",
        file="executors/watchdog.py",
        old="            self._words[place] = 0\n",
        new="",
        tests=("tests/executors/test_watchdog.py::test_the_watchdog_forgets_who_has_ended",),
    ),
    Mutant(
        name="cost-is-unknown-while-artifacts-are-sealed",
        file="engine/progress.py",
        old="    if outcome.metrics:\n",
        new="    if False:\n",
        tests=("tests/engine/test_step_files.py::test_what_an_attempt_cost_is_recorded_before_its_artifacts_are_sealed",),
    ),
    Mutant(
        name="a-replaced-lock-counts",
        file=LOCK,
        old="        return (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino)\n",
        new="        return False\n",
        tests=("tests/stores/test_writer.py::test_two_owners_of_one_run_do_not_both_go_on",),
    ),
    Mutant(
        name="a-time-limit-only-asks",
        file="executors/local.py",
        old="                child.signals = [(now + KILL_GRACE, signal.SIGKILL), (now, signal.SIGTERM)]\n",
        new="                child.signals = [(now, signal.SIGTERM)]\n",
        tests=("tests/executors/test_local.py::TestLocalExecutor::test_a_time_limit_ends_the_whole_tree",),
    ),
    Mutant(
        name="copies-are-collected-beside-a-live-run",
        file="stores/content_store.py",
        old='"lock"), alone=True)',
        new='"lock"))',
        tests=("tests/crash/test_prune_races.py::test_nothing_that_a_live_run_may_need_is_removed",),
    ),
    Mutant(
        name="an-accepted-edit-changes-nothing-below-it",
        file="core/state.py",
        old="    unit.changed_seq = unit.completed_seq = seq\n    unit.completions += 1\n    for outer",
        new="    unit.completed_seq = seq\n    unit.completions += 1\n    for outer",
        tests=("tests/app/test_acceptance.py::test_the_plan_says_what_is_kept",),
    ),
)
