// Stores the users who have been announced as online (the port's `OnlineStore`). These users have
// rows in the database because, unlike sessions, the announcements outlive the process. State: when
// the last session of each user left, and the position of a walk over the rows.

import { type DeviceFlag, userTopic } from "../../../broker/model.ts";
import type { DeadSession, OnlineStore, OnlineTerms } from "../../../broker/online-ports.ts";
import type { Clock } from "../../../broker/ports.ts";
import type { KeyedLock } from "../../../lib/keyed-lock.ts";
import { LinkedMap } from "../../../lib/linked-map.ts";
import { fieldsOf } from "../engine/database.ts";
import type { EventLog } from "../engine/event-log.ts";
import type { Tables } from "../engine/tables.ts";
import type { Emit, EventOutbox } from "./event-outbox.ts";
import { userLock } from "./users.ts";

const VERSION = 1;
/**
 * Size of `#left` above which `left` drops the oldest entry. A walk over the rows then finds that
 * entry's user.
 */
const MAX_LEFT = 100_000;
const ROWS_PER_STEP = 500;

interface LeftUser {
  readonly leftMs: number;
  readonly flag: DeviceFlag;
}

interface OnlinePorts {
  readonly tables: Pick<Tables, "online">;
  readonly events: Pick<EventLog, "isOn">;
  readonly outbox: Pick<EventOutbox, "transact">;
  readonly lock: KeyedLock;
  readonly clock: Clock;
}

export class OnlineUsers implements OnlineStore {
  readonly #ports: OnlinePorts;
  readonly #hasSessions: (uid: string) => boolean;
  /** Users whose last session has left, ordered by `leftMs`. */
  readonly #left = new LinkedMap<string, LeftUser>();
  /**
   * Time at which the last walk over all rows started. `#walk` is the last uid that a running walk
   * visited, or `undefined` if no walk is running.
   */
  #walkedMs = 0;
  #walk: string | undefined;
  #mustWalk = false;

  constructor(ports: OnlinePorts, hasSessions: (uid: string) => boolean) {
    this.#ports = ports;
    this.#hasSessions = hasSessions;
  }

  /** Records that the user has a session again. Returns true if the caller must call `put`. */
  isNew(uid: string): boolean {
    this.#left.delete(uid);
    return this.#ports.tables.online.get(uid) === undefined;
  }

  /** Puts a user's row and emits `user.online`. Does nothing if the row already exists. */
  put(uid: string, flag: DeviceFlag, emit: Emit): void {
    const { online } = this.#ports.tables;
    if (online.get(uid) !== undefined) return;
    void online.put(uid, [VERSION, flag]);
    emit({
      ...{ type: "user.online", key: userTopic(uid), messageSeq: 0 },
      fields: { device_flag: flag },
    });
  }

  /** Records that a user's last session has left. Called only while the feed is on. */
  left(uid: string, flag: DeviceFlag): void {
    this.#left.renew(uid, { leftMs: this.#ports.clock(), flag });
    const { oldest, size } = this.#left;
    if (size <= MAX_LEFT || oldest === undefined) return;
    this.#left.delete(oldest.key);
    this.#mustWalk = true;
  }

  async takeOnline({ limit, leftMs, checkedMs }: OnlineTerms): Promise<readonly string[]> {
    const uids: string[] = [];
    const nowMs = this.#ports.clock();
    for (const [uid, left] of this.#left) {
      if (left.leftMs > nowMs) {
        this.#left.set(uid, { ...left, leftMs: nowMs }); // the clock was set back
        continue;
      }
      if (uids.length >= limit || left.leftMs > leftMs) break;
      uids.push(uid);
    }
    this.#walkedMs = Math.min(this.#walkedMs, nowMs); // the clock may have been set back
    if (this.#walk === undefined && (this.#mustWalk || this.#walkedMs < checkedMs)) {
      this.#mustWalk = false;
      this.#walkedMs = this.#ports.clock();
      this.#walk = "";
    }
    this.#walkInto(uids, limit);
    return uids;
  }

  /** Continues the walk. Appends users with neither a session nor an entry in `#left` to `uids`. */
  #walkInto(uids: string[], limit: number): void {
    for (let steps = 0; this.#walk !== undefined && uids.length < limit; steps++) {
      if (steps * ROWS_PER_STEP >= limit) return;
      const keys = [
        ...this.#ports.tables.online.getKeys({ start: this.#walk, limit: ROWS_PER_STEP }),
      ];
      const before = this.#walk;
      for (const uid of keys) {
        if (uids.length >= limit) return;
        this.#walk = uid;
        if (uid !== before && !this.#hasSessions(uid) && !this.#left.has(uid)) uids.push(uid);
      }
      if (keys.length < ROWS_PER_STEP) this.#walk = undefined;
    }
  }

  endOnline(uid: string, _dead: readonly DeadSession[], leftMs: number): Promise<boolean> {
    const { lock, tables, outbox, clock, events } = this.#ports;
    return lock.run(userLock(uid), async () => {
      const row = tables.online.get(uid);
      if (row === undefined || !events.isOn || this.#hasSessions(uid)) {
        this.#left.delete(uid);
        return false;
      }
      const left = this.#left.get(uid);
      if (left === undefined) {
        this.#left.set(uid, { leftMs: clock(), flag: fieldsOf(row, VERSION)[0] as DeviceFlag });
        return false;
      }
      if (left.leftMs > leftMs) return false;
      await outbox.transact((emit) => {
        void tables.online.remove(uid);
        emit?.({
          ...{ type: "user.offline", key: userTopic(uid), messageSeq: 0 },
          fields: { device_flag: left.flag },
        });
      }, "reclaim");
      this.#left.delete(uid);
      return true;
    });
  }
}
