// Hints of users' groups looked at again, twice within a minute, on a Redis Cluster: a fail-over of the user's slot may lose a hint where the group's
// slot keeps the membership. Whoever stopped listening for the lack of one is told. Nothing is lost with `redis.minReplicas`.
// State: the hints of the last minute, up to a bound beyond which the oldest are not looked at; it ends with the process.

import { randomUUID } from "node:crypto";
import { isAway } from "../../broker/errors.ts";
import { userTopic } from "../../broker/model.ts";
import { looseFrame } from "../../redis/wire.ts";
import type { RedisStoreParts } from "./parts.ts";

export interface HintRepeatsParts
  extends Pick<RedisStoreParts, "link" | "clock" | "onProblem"> {
  /** Asks the group, whose word is the truth. */
  readonly isMember: (uid: string, groupId: string) => Promise<boolean>;
}

/** Behind a crash, and behind the longest that a primary which was cut off takes writes. While the user's slot is away they wait for it. */
const AFTER_MS = [10_000, 60_000] as const;
/** Users of hints in memory; those looked at in one sweep, and at once. */
const MAX_USERS = 200_000;
const USERS_PER_SWEEP = 20_000;
const USERS_AT_ONCE = 256;

interface Hints {
  readonly groupId: string;
  readonly uids: readonly string[];
  readonly writtenMs: number;
  /** How often they were looked at. */
  readonly round: number;
}

export class HintRepeats {
  readonly #parts: HintRepeatsParts;
  readonly #waiting = new Set<Hints>();
  #users = 0;

  constructor(parts: HintRepeatsParts) {
    this.#parts = parts;
  }

  /** The hint of the group was written for these users just now. */
  note(groupId: string, uids: readonly string[]): void {
    const { link, clock } = this.#parts;
    if (!link.isCluster || link.settings.minReplicas > 0) return;
    const hints = { groupId, writtenMs: clock(), round: 0 };
    for (let at = 0; at < uids.length; at += USERS_AT_ONCE)
      this.#put({ ...hints, uids: uids.slice(at, at + USERS_AT_ONCE) });
  }

  /**
   * Looks at those that are due, many at once, whichever calls they came with. What cannot be reached stays due, behind the others, and ends the
   * sweep: a server that does not answer is waited for once.
   */
  async sweep(isStopped: () => boolean): Promise<void> {
    const left: Hints[] = [];
    let users = 0;
    for (const some of this.#takeDue(this.#parts.clock())) {
      const away = await Promise.all(some.map((one) => this.#restoreAll(one)));
      for (const [at, hints] of some.entries()) {
        left.push(...after(hints, new Set(away[at])));
        users += hints.uids.length;
      }
      const isAnyAway = away.some(({ length }) => length > 0);
      if (isAnyAway || isStopped() || users >= USERS_PER_SWEEP) break;
    }
    for (const hints of left)
      if (hints.uids.length > 0 && hints.round < AFTER_MS.length)
        this.#put(hints);
  }

  /** Takes those that are due, piece by piece: as many users as are looked at at once. */
  *#takeDue(nowMs: number): Generator<readonly Hints[]> {
    let piece: Hints[] = [];
    let users = 0;
    for (const hints of this.#waiting) {
      if (nowMs < hints.writtenMs + (AFTER_MS[hints.round] ?? 0)) continue;
      if (users + hints.uids.length > USERS_AT_ONCE) {
        yield piece;
        piece = [];
        users = 0;
      }
      this.#take(hints);
      piece.push(hints);
      users += hints.uids.length;
    }
    if (piece.length > 0) yield piece;
  }

  #put(hints: Hints): void {
    this.#waiting.add(hints);
    this.#users += hints.uids.length;
    for (const oldest of this.#waiting) {
      if (this.#users <= MAX_USERS) return;
      this.#take(oldest);
    }
  }

  #take(hints: Hints): void {
    if (this.#waiting.delete(hints)) this.#users -= hints.uids.length;
  }

  /** The users that cannot be reached. */
  async #restoreAll({ groupId, uids }: Hints): Promise<readonly string[]> {
    const results = await Promise.allSettled(
      uids.map((uid) => this.#restore(uid, groupId)),
    );
    return uids.filter((_, at) => {
      const result = results[at];
      if (result?.status !== "rejected") return false;
      if (isAway(result.reason)) return true;
      this.#parts.onProblem(
        result.reason,
        "The group index of a user could not be repaired",
      );
      return false;
    });
  }

  /** Notified before it is written: of one that is there nobody is notified again. */
  async #restore(uid: string, groupId: string): Promise<void> {
    const { link, isMember } = this.#parts;
    const hint = link.keys.user("groups", uid);
    if ((await link.call("sismember", hint, groupId)) === 1) return;
    if (!(await isMember(uid, groupId))) return; // no more: a reader took the hint away
    await this.#notify(uid, groupId);
    await link.call("sadd", hint, groupId);
  }

  async #notify(uid: string, channelId: string): Promise<void> {
    const { link } = this.#parts;
    const event = { kind: "addition", uid, channelId } as const;
    const frame = looseFrame(randomUUID(), event);
    await link.call("spublish", link.keys.topic(userTopic(uid)), frame);
  }
}

/** Those that were away are due as before, the others a round later. */
function after(hints: Hints, away: ReadonlySet<string>): readonly Hints[] {
  const uids = hints.uids.filter((uid) => !away.has(uid));
  return [
    { ...hints, uids: [...away] },
    { ...hints, uids, round: hints.round + 1 },
  ];
}
