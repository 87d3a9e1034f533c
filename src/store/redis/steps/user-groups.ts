// The groups of each user. The members of each group, in the group's slot, are the truth; in the
// user's slot an index names at least the groups the user is in, maybe more. A group is entered,
// with the time, before the script that may make the user a member. A reader asks the groups and
// removes what it finds wrong, but no young entry and none that was entered again: so no entry is
// missing behind that script. State: index repairs.

import { randomUUID } from "node:crypto";
import { isTransient } from "../../../broker/errors.ts";
import type { ChannelStore } from "../../../broker/ports.ts";
import { TimeSlice } from "../../../lib/time-slice.ts";
import { bucketOf } from "../../../redis/keys.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import { unorderedFrame } from "../../../redis/wire.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { IndexRepairs } from "./index-repairs.ts";

const ADD = loadScript(lua("groups_add"));
const AMONG = loadScript(lua("groups_among"), lua("channel_record"));
const REMOVE = loadScript(lua("groups_remove"));

/**
 * Scripts that enter groups, under way at once; users of one of them on one server. On a Cluster
 * each user has a slot of its own.
 */
const ADDS_AT_ONCE = 256;
const USERS_PER_ADD = 500;
/** Groups that one script asks about. */
const GROUPS_PER_STEP = 100;
/** Entries of this age may be wrong, and are removed then. */
const YOUNG_S = 300;
/**
 * A script that makes members, and ends by so much later than the entries before it, has them
 * entered again: the node may have stood still.
 */
const SLOW_MS = 60_000;

/** When each group was entered, as read. */
type Index = ReadonlyMap<string, string>;

export class UserGroups {
  readonly #parts: RedisStorePorts;
  readonly #link: RedisLink;
  readonly #repairs: IndexRepairs;

  constructor(parts: RedisStorePorts) {
    this.#parts = parts;
    this.#link = parts.link;
    this.#repairs = new IndexRepairs({
      ...parts,
      add: (groupId, uid) => this.#add(groupId, [uid], this.#notification(groupId, uid)),
    });
  }

  /**
   * Runs a script that may make the users members of the group, behind the entries in their
   * indexes, and enters them again where that took so long that a reader may have removed them
   * before.
   */
  async behind<T>(groupId: string, uids: readonly string[], script: () => Promise<T>): Promise<T> {
    const sinceMs = this.#parts.clock();
    await this.add(groupId, uids);
    const reply = await script();
    if (this.#parts.clock() - sinceMs > SLOW_MS) await this.add(groupId, uids);
    return reply;
  }

  /** Enters the group into the users' indexes; again for members it does no harm. */
  async add(groupId: string, uids: readonly string[]): Promise<void> {
    const size = this.#link.isCluster ? 1 : USERS_PER_ADD;
    const pieces: (readonly string[])[] = [];
    for (let at = 0; at < uids.length; at += size) pieces.push(uids.slice(at, at + size));
    for (let at = 0; at < pieces.length; at += ADDS_AT_ONCE) {
      const some = pieces.slice(at, at + ADDS_AT_ONCE);
      await Promise.all(some.map((piece) => this.#add(groupId, piece)));
    }
  }

  /** Repairs indexes that a fail-over may have taken entries from. To be called now and then. */
  sweep(isStopped: () => boolean): Promise<void> {
    return this.#repairs.sweep(isStopped);
  }

  /** The groups `uid` is a member of, disbanded ones left out, in no order. */
  async of(uid: string): Promise<readonly string[]> {
    const index = await this.#read(uid);
    const found = await this.#among(uid, [...index.keys()]);
    await this.#remove(uid, index, found);
    return found;
  }

  /** See `ChannelStore`. The index is repaired later: nobody waits for that. */
  async amongOf(uid: string, ids: readonly string[]): ReturnType<ChannelStore["groupsAmong"]> {
    const [index, groups] = await Promise.all([this.#read(uid), this.#among(uid, ids)]);
    const asked = new Set(ids);
    const isAll = [...index.keys()].every((id) => asked.has(id));
    if (isAll)
      this.#remove(uid, index, groups).catch((error: unknown) => {
        if (!isTransient(error))
          this.#parts.onError(error, "The group index could not be repaired");
      });
    return { groups, isAll };
  }

  async #read(uid: string): Promise<Index> {
    const key = this.#link.keys.user("groups", uid);
    const reply = await this.#link.call("hgetall", key);
    const entries = Object.entries(reply as Record<string, Buffer>); // what ioredis makes of HGETALL's reply
    return new Map(entries.map(([id, entered]) => [id, String(entered)]));
  }

  /** All that are old, but those where the user was `found` to be a member. */
  async #remove(uid: string, index: Index, found: readonly string[]): Promise<void> {
    if (found.length === index.size) return;
    const members = new Set(found);
    const oldS = this.#parts.clock() / 1000 - YOUNG_S; // Redis' clock decides
    const wrong = [...index].filter(
      ([id, enteredS]) => !members.has(id) && Number(enteredS) < oldS,
    );
    if (wrong.length === 0) return;
    const key = this.#link.keys.user("groups", uid);
    await this.#link.run(REMOVE, [key], [YOUNG_S, ...wrong.flat()]);
  }

  async #among(uid: string, ids: readonly string[]): Promise<string[]> {
    const slice = new TimeSlice();
    const pieces = piecesOf(ids, this.#link);
    const found = await slice.each(pieces, async (some) => {
      const groupKeys = some.flatMap((id) =>
        ["head", "permanent", "temporary"].map((part) => this.#link.keys.channel(part, `2:${id}`)),
      );
      const reply = await this.#link.run(AMONG, groupKeys, [uid]);
      const positions = reply as readonly number[]; // as its header says
      return positions.flatMap((position) => some[position - 1] ?? []);
    });
    return found.flat();
  }

  /** Of users whose indexes are in one slot. */
  async #add(
    groupId: string,
    uids: readonly string[],
    notification: readonly Arg[] = [],
  ): Promise<void> {
    const indexes = uids.map((uid) => this.#link.keys.user("groups", uid));
    const connection = this.#repairs.connectionOf(indexes[0] ?? "");
    await this.#link.run(ADD, indexes, [groupId, ...notification]);
    for (const uid of uids) this.#repairs.note({ groupId, uid, connection });
  }

  #notification(channelId: string, uid: string): readonly Arg[] {
    const topic = this.#link.keys.user("topic", uid);
    const event = { kind: "addition", uid, channelId } as const;
    return [topic, unorderedFrame(randomUUID(), event)];
  }
}

/**
 * Groups in pieces that one step may be asked about: on a Redis Cluster, whose keys are in one
 * slot.
 */
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
