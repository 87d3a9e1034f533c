// Registers and logs out devices, reads the online status of users, bans accounts, and ends
// sessions.

import type { CloseReason } from "./errors.ts";
import { assertId, assertUserUid } from "./ids.ts";
import {
  DEVICE_FLAGS,
  type Device,
  type DeviceFlag,
  type DeviceLevel,
  JWT_TAG,
  MAIN_DEVICE,
  type Presence,
  SECONDARY_DEVICE,
  type SessionRecord,
} from "./model.ts";
import type { Announcer, SessionStore, UserStore } from "./ports.ts";
import type { SessionDirectory } from "./session-directory.ts";
import { connectionNumber } from "./session-names.ts";
import { hashesEqual, hashToken, tokenTag } from "./tokens.ts";

/**
 * Operations on users. A call that changes sessions throws `unavailable` if a node could not be
 * notified. Repeating the call notifies all nodes again.
 */
export interface Users {
  /**
   * Registers a token. If a main device's token changes, the main sessions of that flag are ended,
   * except sessions with a JWT or with the new token. If the token does not change, only sessions
   * with an older token are ended, because an earlier call may have failed to end them. Sessions
   * with a token that a later call has registered are not ended.
   */
  setToken(input: {
    readonly uid: string;
    readonly token: string;
    readonly flag: DeviceFlag;
    readonly level: DeviceLevel;
  }): Promise<void>;
  /** Logs devices out. Sessions with a token that a later call has registered are not ended. */
  quitDevice(uid: string, flags: readonly DeviceFlag[]): Promise<void>;
  /** Returns one record per uid, in the order of `uids`, duplicates included. Throws `bad_id`. */
  onlineStatus(uids: readonly string[]): Promise<readonly Presence[]>;
  liveSessions(uids: readonly string[]): Promise<readonly (readonly SessionRecord[])[]>;
  devices(uid: string): Promise<readonly Device[]>;
  /** Returns true if the account is banned [decisions: A banned account]. */
  isBanned(uid: string): Promise<boolean>;
  /**
   * If `isBanned` is true, bans the account and ends its sessions and stream readers. Otherwise,
   * lifts the ban.
   */
  setBan(uid: string, isBanned: boolean): Promise<void>;
  /**
   * Ends a session on any node with the reason `kicked`, if the session exists. `connId` is the
   * session's id or its connection number.
   */
  kick(uid: string, connId: string | number): Promise<void>;
}

export function createUsers(ports: {
  readonly store: UserStore & Pick<SessionStore, "sessionsOf" | "endSession">;
  readonly directory: Pick<SessionDirectory, "presence" | "liveSessions">;
  readonly publisher: Announcer;
}): Users {
  const { store, directory, publisher } = ports;

  /**
   * Ends the user's sessions that `which` selects, even those on nodes that are considered dead.
   * `which` is called after the sessions were read, so it can exclude sessions that a later call
   * allowed while this call was in progress.
   */
  async function endSessions(
    uid: string,
    reason: CloseReason,
    which: (session: SessionRecord) => boolean | Promise<boolean>,
  ): Promise<void> {
    const [entries = []] = await store.sessionsOf([uid]);
    await Promise.all(
      entries.map(async ({ session }) => {
        if (await which(session)) await store.endSession(session, reason);
      }),
    );
  }

  /** Returns true if the session has the token that is now registered for its device. */
  async function hasCurrentToken({ uid, flag, tokenTag: tag }: SessionRecord): Promise<boolean> {
    const device = await store.device(uid, flag);
    // The hash of a logged-out device is empty, and so is the tag of a session without a token. The
    // two must not match.
    return device !== undefined && tag !== "" && tokenTag(device.tokenHash) === tag;
  }

  async function recheck(uid: string): Promise<void> {
    await publisher.announce([{ kind: "credential", uid }]);
  }

  /**
   * Waits for a change. If the change fails, asks all nodes to check the user's sessions,
   * because a change that could not be flushed or replicated may still have taken effect.
   */
  async function withRecheck<Result>(uid: string, change: Promise<Result>): Promise<Result> {
    try {
      return await change;
    } catch (error) {
      await recheck(uid).catch(() => undefined); // the caller gets the first error
      throw error;
    }
  }

  async function logOut(uid: string, flags: readonly DeviceFlag[]): Promise<void> {
    for (const flag of flags) {
      const device = await store.device(uid, flag);
      const level = device?.level ?? SECONDARY_DEVICE;
      await store.putDevice({ uid, flag, level, tokenHash: new Uint8Array() });
    }
    // The sessions are ended before the nodes are notified, which may be slow, so that a session that
    // logs in during the notification with a newer JWT, or without a token, is not ended.
    await endSessions(
      uid,
      "logged_out",
      async (session) => flags.includes(session.flag) && !(await hasCurrentToken(session)),
    );
  }

  return {
    async setToken({ uid, token, flag, level }) {
      assertUserUid(uid);
      const device = { uid, flag, level, tokenHash: hashToken(token) };
      const previous = await withRecheck(uid, store.putDevice(device));
      if (!previous) return;
      const isEqual = hashesEqual(previous.tokenHash, device.tokenHash);
      await recheck(uid);
      if (previous.level === MAIN_DEVICE || level === MAIN_DEVICE)
        await endSessions(
          uid,
          "token_changed",
          async (session) =>
            session.flag === flag &&
            session.level === MAIN_DEVICE &&
            session.tokenTag !== JWT_TAG &&
            !(isEqual && session.tokenTag === "") && // the tag "" means no token
            !(await hasCurrentToken(session)),
        );
    },

    async quitDevice(uid, flags) {
      assertUserUid(uid);
      await withRecheck(uid, logOut(uid, flags));
      await recheck(uid);
    },

    async onlineStatus(uids) {
      for (const uid of uids) assertId(uid, "uid");
      return directory.presence(uids);
    },

    async liveSessions(uids) {
      for (const uid of uids) assertId(uid, "uid");
      return directory.liveSessions(uids);
    },

    async devices(uid) {
      assertId(uid, "uid");
      const devices = await Promise.all(DEVICE_FLAGS.map((flag) => store.device(uid, flag)));
      return devices.filter((device) => device !== undefined);
    },

    async isBanned(uid) {
      assertId(uid, "uid");
      return store.isBanned(uid);
    },

    async setBan(uid, isBanned) {
      assertId(uid, "uid");
      await withRecheck(uid, store.putBan(uid, isBanned));
      if (!isBanned) return;
      await recheck(uid);
      let isStillBanned: Promise<boolean> | undefined;
      await endSessions(uid, "banned", () => {
        isStillBanned ??= store.isBanned(uid); // read once, after the sessions were read
        return isStillBanned;
      });
    },

    async kick(uid, connId) {
      assertId(uid, "uid");
      await endSessions(
        uid,
        "kicked",
        ({ sessionId }) => connId === sessionId || connId === connectionNumber(sessionId),
      );
    },
  };
}
