// Group index of each user: at least the user's groups, maybe more. The group's own slot is
// authoritative. A group is added to the index, with the time, before the script that may make the
// user a member.

import { randomUUID } from "node:crypto";
import { isTransient } from "../../../broker/errors.ts";
import { userTopic } from "../../../broker/model.ts";
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

const ADDS_IN_FLIGHT = 256;
/** Maximum number of users per call of `groups_add.lua`. On a Cluster it is one user per call. */
const USERS_PER_ADD = 500;
const GROUPS_PER_CALL = 100;
const MIN_REMOVE_AGE_S = 300;
/** Duration of a script after which entries are added again: a reader may have removed them. */
const MAX_ADD_MS = 60_000;

/** Access of lists to the group index of each user. */
export type GroupIndex = Pick<UserGroups, "indexed" | "removeWrong">;

/** A user's group index: Unix seconds at which each group was added, as the stored text. */
type Index = ReadonlyMap<string, string>;

export class UserGroups {
  readonly #ports: RedisStorePorts;
  readonly #link: RedisLink;
  readonly #repairs: IndexRepairs;

  constructor(ports: RedisStorePorts) {
    this.#ports = ports;
    this.#link = ports.link;
    this.#repairs = new IndexRepairs({
      ...ports,
      add: (groupId, uid) => this.#add(groupId, [uid], this.#notification(groupId, uid)),
    });
  }

  /**
   * Adds the group to the indexes, then runs the script. Adds the group again if the script took so
   * long that a reader may have removed the entries.
   */
  async addBefore<T>(
    groupId: string,
    uids: readonly string[],
    script: () => Promise<T>,
  ): Promise<T> {
    const startMs = this.#ports.clock();
    await this.add(groupId, uids);
    const reply = await script();
    if (this.#ports.clock() - startMs > MAX_ADD_MS) await this.add(groupId, uids);
    return reply;
  }

  async add(groupId: string, uids: readonly string[]): Promise<void> {
    const size = this.#link.isCluster ? 1 : USERS_PER_ADD;
    const pieces: (readonly string[])[] = [];
    for (let at = 0; at < uids.length; at += size) pieces.push(uids.slice(at, at + size));
    for (let at = 0; at < pieces.length; at += ADDS_IN_FLIGHT) {
      const batch = pieces.slice(at, at + ADDS_IN_FLIGHT);
      await Promise.all(batch.map((piece) => this.#add(groupId, piece)));
    }
  }

  sweep(isStopped: () => boolean): Promise<void> {
    return this.#repairs.sweep(isStopped);
  }

  /** Returns the user's groups without disbanded ones. Removes wrong entries from the index. */
  async of(uid: string): Promise<readonly string[]> {
    const index = await this.#read(uid);
    const groups = await this.#among(uid, [...index.keys()]);
    await this.#remove(uid, index, groups);
    return groups;
  }

  /** Returns the groups in the user's index, which the user may have left. */
  async indexed(uid: string): Promise<readonly string[]> {
    const reply = await this.#link.call("hkeys", this.#link.keys.user("groups", uid));
    return (reply as readonly Buffer[]).map((id) => id.toString());
  }

  /** Removes groups of which the user is not a member from the index. */
  async removeWrong(uid: string, ids: readonly string[]): Promise<void> {
    const key = this.#link.keys.user("groups", uid);
    const reply = await this.#link.call("hmget", key, ...ids);
    const index = (reply as readonly (Buffer | null)[]).flatMap((entered, at) =>
      entered === null ? [] : [[ids[at] ?? "", String(entered)] as const],
    );
    await this.#remove(uid, new Map(index), []);
  }

  /** Implements `groupsAmong` of `ChannelStore`. Does not wait for the removal of wrong entries. */
  async amongOf(uid: string, ids: readonly string[]): ReturnType<ChannelStore["groupsAmong"]> {
    const [index, groups] = await Promise.all([this.#read(uid), this.#among(uid, ids)]);
    const requested = new Set(ids);
    const isAll = [...index.keys()].every((id) => requested.has(id));
    if (isAll)
      this.#remove(uid, index, groups).catch((error: unknown) => {
        if (!isTransient(error))
          this.#ports.onError(
            error,
            "Could not remove wrong entries from the group index of a user",
          );
      });
    return { groups, isAll };
  }

  async #read(uid: string): Promise<Index> {
    const key = this.#link.keys.user("groups", uid);
    const reply = await this.#link.call("hgetall", key);
    // The reply of HGETALL, which ioredis converts to an object.
    const entries = Object.entries(reply as Record<string, Buffer>);
    return new Map(entries.map(([id, entered]) => [id, String(entered)]));
  }

  async #remove(uid: string, index: Index, groups: readonly string[]): Promise<void> {
    if (groups.length === index.size) return;
    const members = new Set(groups);
    // A first selection by the store's clock. The script decides by the server's clock.
    const oldS = this.#ports.clock() / 1000 - MIN_REMOVE_AGE_S;
    const wrong = [...index].filter(
      ([id, enteredS]) => !members.has(id) && Number(enteredS) < oldS,
    );
    if (wrong.length === 0) return;
    const key = this.#link.keys.user("groups", uid);
    await this.#link.run(REMOVE, [key], [MIN_REMOVE_AGE_S, ...wrong.flat()]);
  }

  async #among(uid: string, ids: readonly string[]): Promise<string[]> {
    const timeSlice = new TimeSlice();
    const pieces = piecesOf(ids, this.#link);
    const groups = await timeSlice.each(pieces, async (piece) => {
      const groupKeys = piece.flatMap((id) =>
        ["head", "permanent", "temporary"].map((part) => this.#link.keys.channel(part, `2:${id}`)),
      );
      const reply = await this.#link.run(AMONG, groupKeys, [uid]);
      const positions = reply as readonly number[]; // see the header of `groups_among.lua`
      return positions.flatMap((position) => piece[position - 1] ?? []);
    });
    return groups.flat();
  }

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
    const topic = this.#link.keys.topic(userTopic(uid));
    const event = { kind: "addition", uid, channelId } as const;
    return [topic, unorderedFrame(randomUUID(), event)];
  }
}

/** Splits group ids into one piece per call. On a Redis Cluster a piece's keys are in one slot. */
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
    if (last.length < GROUPS_PER_CALL) last.push(id);
    else pieces.push([id]);
  }
  return [...buckets.values()].flat();
}
