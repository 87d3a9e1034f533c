// Group index of each user. It contains all of the user's groups, and may contain others. The sets
// of members in the group's slot are authoritative. Before a script may make the user a member, the
// group is added to the user's index with the current time.

import { hash, randomUUID } from "node:crypto";
import { isTransient } from "../../../broker/errors.ts";
import { type ChannelKey, userTopic } from "../../../broker/model.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import { unorderedFrame } from "../../../redis/wire.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { bucketArgs, channelPieces } from "./channel-pieces.ts";
import { IndexRepairs } from "./index-repairs.ts";

const ADD = loadScript(lua("groups_add"));
const AMONG = loadScript(lua("groups_among"), lua("channel_record"), lua("group_membership"));
const REMOVE = loadScript(lua("groups_remove"));

const GROUP_PREFIX = "2:";
const ADDS_IN_FLIGHT = 256;
/**
 * Maximum number of users per call to `groups_add.lua` on a single server. On a Cluster, a call has
 * one user.
 */
const USERS_PER_ADD = 500;
/** Maximum number of groups per call. With this number, a call takes 0.3 ms. */
const GROUPS_PER_CALL = 200;
/** Maximum number of calls in flight for long lists. The limit leaves room for other calls. */
const LONG_LISTS_IN_FLIGHT = 2;
const MIN_REMOVE_AGE_S = 300;
/** Duration of the first two steps of `addBefore` above which the group is added again. */
const MAX_ADD_MS = 60_000;

/** Methods of `UserGroups` that other steps call. */
export type GroupIndex = Pick<UserGroups, "indexed" | "removeWrong" | "dropWrong">;

/**
 * Returns the digest by which a script recognises a list of these ids (see `lua/groups_index.lua`).
 */
export function indexDigest(ids: readonly string[]): string {
  return hash("sha1", ids.map((id) => `${id}\n`).join(""));
}

/**
 * A user's group index. The value of a group is the stored text: the Unix seconds at which the
 * group was added.
 */
type Index = ReadonlyMap<string, string>;

export class UserGroups {
  readonly #ports: RedisStorePorts;
  readonly #link: RedisLink;
  readonly #repairs: IndexRepairs;
  readonly #longLists = new Semaphore(LONG_LISTS_IN_FLIGHT);

  constructor(ports: RedisStorePorts) {
    this.#ports = ports;
    this.#link = ports.link;
    this.#repairs = new IndexRepairs({
      ...ports,
      add: (groupId, uid) => this.#add(groupId, [uid], this.#notification(groupId, uid)),
    });
  }

  /**
   * Adds the group to the indexes, then runs the script. Adds the group again if these steps took
   * longer than `MAX_ADD_MS` together, because a reader may then have removed the entries.
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

  /** Returns the user's groups, without disbanded groups. Removes wrong entries from the index. */
  async of(uid: string): Promise<readonly string[]> {
    const index = await this.#read(uid);
    const groups = await this.#among(uid, [...index.keys()]);
    await this.#remove(uid, index, groups);
    return groups;
  }

  /** Returns the groups in the user's index. The user may already have left some of them. */
  async indexed(uid: string): Promise<readonly string[]> {
    const reply = await this.#link.call("hkeys", this.#link.keys.user("groups", uid));
    return (reply as readonly Buffer[]).map((id) => id.toString());
  }

  /**
   * Removes these groups from the user's index, except entries newer than `MIN_REMOVE_AGE_S`. The
   * user must not be a member of these groups.
   */
  async removeWrong(uid: string, ids: readonly string[]): Promise<void> {
    const key = this.#link.keys.user("groups", uid);
    const reply = await this.#link.call("hmget", key, ...ids);
    const index = (reply as readonly (Buffer | null)[]).flatMap((entered, at) =>
      entered === null ? [] : [[ids[at] ?? "", String(entered)] as const],
    );
    await this.#remove(uid, new Map(index), []);
  }

  /**
   * Removes wrong entries from the user's index in the background. An entry is wrong if its id is
   * in `ids` and not in `groups`, unless the entry is newer than `MIN_REMOVE_AGE_S`. `groups` must
   * contain every group in `ids` that the user is a member of.
   */
  dropWrong(uid: string, ids: ReadonlySet<string>, groups: readonly string[]): void {
    this.#removeAmong(uid, ids, groups).catch((error: unknown) => {
      if (!isTransient(error))
        this.#ports.onError(error, "Could not remove wrong entries from a user's group index");
    });
  }

  async #read(uid: string): Promise<Index> {
    const key = this.#link.keys.user("groups", uid);
    const reply = await this.#link.call("hgetall", key);
    // ioredis converts the reply of HGETALL to an object.
    const entries = Object.entries(reply as Record<string, Buffer>);
    return new Map(entries.map(([id, entered]) => [id, String(entered)]));
  }

  async #removeAmong(
    uid: string,
    ids: ReadonlySet<string>,
    groups: readonly string[],
  ): Promise<void> {
    const entries = [...(await this.#read(uid))].filter(([id]) => ids.has(id));
    await this.#remove(uid, new Map(entries), groups);
  }

  async #remove(uid: string, index: Index, groups: readonly string[]): Promise<void> {
    if (groups.length === index.size) return;
    const members = new Set(groups);
    // This filter only preselects entries by the store's clock. The script decides by the server's
    // clock.
    const oldS = this.#ports.clock() / 1000 - MIN_REMOVE_AGE_S;
    const wrong = [...index].filter(
      ([id, enteredS]) => !members.has(id) && Number(enteredS) < oldS,
    );
    if (wrong.length === 0) return;
    const key = this.#link.keys.user("groups", uid);
    await this.#link.run(REMOVE, [key], [MIN_REMOVE_AGE_S, ...wrong.flat()]);
  }

  async #among(uid: string, ids: readonly string[]): Promise<readonly string[]> {
    if (ids.length === 0) return [];
    const channels = ids.map((id) => `${GROUP_PREFIX}${id}`);
    const pieces = channelPieces(this.#link, channels, GROUPS_PER_CALL);
    const [first = []] = pieces;
    if (pieces.length === 1) return this.#amongPiece(uid, first);
    const groups = await Promise.all(
      pieces.map((piece) => {
        const check = () => this.#amongPiece(uid, piece);
        // On a Cluster, the calls do not share a limit, because a server that is down must not
        // delay the calls to other servers.
        return this.#link.isCluster ? check() : this.#longLists.run(check);
      }),
    );
    return groups.flat();
  }

  async #amongPiece(uid: string, piece: readonly ChannelKey[]): Promise<readonly string[]> {
    const { tags, args, ordered } = bucketArgs(this.#link.keys, piece);
    const reply = await this.#link.run(AMONG, tags, [uid, ...args]);
    const others = new Set(reply as readonly number[]); // see the header of `groups_among.lua`
    const groups = ordered.filter((_, at) => !others.has(at + 1));
    return groups.map((key) => key.slice(GROUP_PREFIX.length));
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
