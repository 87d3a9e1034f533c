// The groups of each user. The truth are the members of each group, in the group's slot; in the user's slot there is a hint that names at least
// the groups the user is in, maybe more. A reader asks the groups and takes out of the hint what is no more. No state of
// its own but in Redis.

import { randomUUID } from "node:crypto";
import { isAway } from "../../broker/errors.ts";
import type { ChannelStore } from "../../broker/ports.ts";
import { TimeSlice } from "../../lib/time-slice.ts";
import { bucketOf } from "../../redis/keys.ts";
import type { RedisLink } from "../../redis/link.ts";
import { loadScript, type Script } from "../../redis/script.ts";
import { HintRepeats, type HintRepeatsParts } from "./hint-repeats.ts";

const lua = (name: string) => new URL(`./lua/${name}.lua`, import.meta.url);
const AMONG = loadScript(lua("groups_among"), lua("channel_record"));
const DOUBT = loadScript(lua("groups_doubt"));
const SETTLE = loadScript(lua("groups_settle"));

export const groupScripts: readonly Script[] = [AMONG, DOUBT, SETTLE];

/** Hints under way at once. */
const HINTS_AT_ONCE = 256;
/** Groups that one step asks about. */
const GROUPS_PER_STEP = 100;
/** Between a reader's name and a group id, which holds no control character. */
const SEPARATOR = "\n";

/** What the user's slot says. */
interface Index {
  readonly hinted: readonly string[];
  readonly doubted: readonly string[];
  readonly doubts: readonly string[];
}

export class UserGroups {
  readonly #link: RedisLink;
  readonly #onProblem: HintRepeatsParts["onProblem"];
  readonly #repeats: HintRepeats;

  constructor(parts: Omit<HintRepeatsParts, "isMember">) {
    this.#link = parts.link;
    this.#onProblem = parts.onProblem;
    this.#repeats = new HintRepeats({
      ...parts,
      isMember: async (uid, groupId) =>
        (await this.#among(uid, [groupId])).length > 0,
    });
  }

  /**
   * Runs a step that may make the users members of the group. The hint is there before, so that a node that dies in between leaves no member
   * without it, and again after it, since a reader may have taken it away before the step.
   */
  async around<T>(
    groupId: string,
    uids: readonly string[],
    step: () => Promise<T>,
  ): Promise<T> {
    await this.#hint(groupId, uids);
    try {
      const answer = await step();
      await this.#hint(groupId, uids);
      return answer;
    } finally {
      this.#repeats.note(groupId, uids);
    }
  }

  /** Sees to the hints of members whose own call may not have come so far. */
  async again(groupId: string, members: readonly string[]): Promise<void> {
    await this.#hint(groupId, members);
    this.#repeats.note(groupId, members);
  }

  /** Restores hints that a fail-over lost. To be called now and then. */
  sweep(isStopped: () => boolean): Promise<void> {
    return this.#repeats.sweep(isStopped);
  }

  /** The groups `uid` is a member of, disbanded ones left out, in no order. */
  async of(uid: string): Promise<readonly string[]> {
    const index = await this.#index(uid);
    const found = await this.#among(uid, index.hinted);
    return [...found, ...(await this.#tidy(uid, index, found))];
  }

  /** See `ChannelStore`. The index is repaired later: nobody waits for that. */
  async amongOf(
    uid: string,
    ids: readonly string[],
  ): ReturnType<ChannelStore["groupsAmong"]> {
    const [index, groups] = await Promise.all([
      this.#index(uid),
      this.#among(uid, ids),
    ]);
    const asked = new Set(ids);
    const isAll = index.hinted.every((id) => asked.has(id));
    if (isAll)
      this.#tidy(uid, index, groups).catch((error: unknown) => {
        if (!isAway(error))
          this.#onProblem(error, "The group index could not be repaired");
      });
    return { groups, isAll };
  }

  async #index(uid: string): Promise<Index> {
    const { keys } = this.#link;
    const [groups, doubts] = await Promise.all([
      this.#link.call("smembers", keys.user("groups", uid)),
      this.#link.call("smembers", keys.user("doubt", uid)),
    ]);
    return indexOf(groups, doubts);
  }

  /** Repairs the index by what was found of it; the groups that the user came back to meanwhile. */
  async #tidy(
    uid: string,
    { hinted, doubted, doubts }: Index,
    found: readonly string[],
  ): Promise<readonly string[]> {
    const isFound = new Set(found);
    const stale = hinted.filter((id) => !isFound.has(id));
    if (stale.length === 0 && doubts.length === 0) return [];
    const doubtedFound = doubted.filter((id) => isFound.has(id));
    return this.#settle(uid, stale, { found: doubtedFound, doubts });
  }

  /** Takes stale hints away unless the user became a member meanwhile; the groups of which that is so. `read`: what earlier readers left. */
  async #settle(
    uid: string,
    stale: readonly string[],
    read: {
      readonly found: readonly string[];
      readonly doubts: readonly string[];
    },
  ): Promise<readonly string[]> {
    const { keys } = this.#link;
    const both = [keys.user("groups", uid), keys.user("doubt", uid)];
    const reader = randomUUID();
    await this.#link.run(DOUBT, both, [reader, ...stale]);
    const back = await this.#among(uid, stale);
    const mine = stale.map((id) => `${reader}${SEPARATOR}${id}`);
    const kept = [...read.found, ...back];
    await this.#link.run(SETTLE, both, [
      ...[kept.length, ...kept],
      ...[...mine, ...read.doubts],
    ]);
    return back;
  }

  async #among(uid: string, ids: readonly string[]): Promise<string[]> {
    const slice = new TimeSlice();
    const pieces = piecesOf(ids, this.#link);
    const found = await slice.each(pieces, async (some) => {
      const groupKeys = some.flatMap((id) =>
        ["info", "perm", "temp"].map((part) =>
          this.#link.keys.channel(part, `2:${id}`),
        ),
      );
      const reply = await this.#link.run(AMONG, groupKeys, [uid]);
      const positions = reply as readonly number[]; // as its header says
      return positions.flatMap((position) => some[position - 1] ?? []);
    });
    return found.flat();
  }

  async #hint(groupId: string, uids: readonly string[]): Promise<void> {
    for (let first = 0; first < uids.length; first += HINTS_AT_ONCE)
      await Promise.all(
        uids
          .slice(first, first + HINTS_AT_ONCE)
          .map((uid) =>
            this.#link.call(
              "sadd",
              this.#link.keys.user("groups", uid),
              groupId,
            ),
          ),
      );
  }
}

/** The ids in `hinted`, each once, and what earlier readers left. */
export function indexOf(groups: unknown, doubts: unknown): Index {
  const left = texts(doubts);
  const doubted = left.map((one) => one.split(SEPARATOR)[1] ?? "");
  const hinted = [...new Set([...texts(groups), ...doubted])];
  return { hinted, doubted, doubts: left };
}

/** Groups in pieces that one step may be asked about: on a Redis Cluster, whose keys are in one slot. */
function piecesOf(
  ids: readonly string[],
  { isCluster }: Pick<RedisLink, "isCluster">,
): readonly string[][] {
  const buckets = new Map<number, string[][]>();
  for (const id of ids) {
    const bucket = isCluster ? bucketOf(`2:${id}`) : 0;
    const pieces = buckets.get(bucket) ?? [[]];
    buckets.set(bucket, pieces);
    const last = pieces.at(-1) ?? [];
    if (last.length < GROUPS_PER_STEP) last.push(id);
    else pieces.push([id]);
  }
  return [...buckets.values()].flat();
}

function texts(reply: unknown): readonly string[] {
  return (reply as readonly Buffer[]).map((one) => one.toString()); // SMEMBERS' reply
}
