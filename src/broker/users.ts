// Users: tokens of their devices, logging devices out, online status. State: none.

import type { CloseReason } from "./errors.ts";
import { assertId, assertUserUid } from "./ids.ts";
import {
  DEVICE_FLAGS,
  type Device,
  type DeviceFlag,
  type DeviceLevel,
  MAIN_DEVICE,
  type Presence,
  SECONDARY_DEVICE,
  type SessionRecord,
} from "./model.ts";
import type { Announcer, SessionStore, UserStore } from "./ports.ts";
import type { SessionDirectory } from "./session-directory.ts";
import { hashesEqual, hashToken, tokenTag } from "./tokens.ts";

/**
 * If a session could not be notified, calls throw `unavailable`; a repeated call notifies again.
 */
export interface Users {
  /**
   * Registers or refreshes a device class's token; the new one is valid at once, and nodes that
   * serve the user by the old one are notified. A changed token on a main device ends that flag's
   * live main sessions; an equal token ends only sessions of the old one that a failed call left
   * [decisions: /user/token again]. Throws `bad_id`, `reserved_uid`.
   */
  setToken(input: {
    readonly uid: string;
    readonly token: string;
    readonly flag: DeviceFlag;
    readonly level: DeviceLevel;
  }): Promise<void>;
  /** Removes the tokens of these device classes and ends their sessions. Throws `bad_id`. */
  quitDevice(uid: string, flags: readonly DeviceFlag[]): Promise<void>;
  /** One record per uid, in order, duplicates included. Throws `bad_id`. */
  onlineStatus(uids: readonly string[]): Promise<readonly Presence[]>;
  /** The live sessions of each uid, in order, duplicates included. Throws `bad_id`. */
  liveSessions(uids: readonly string[]): Promise<readonly (readonly SessionRecord[])[]>;
  /** The registered device classes of a user. Throws `bad_id`. */
  devices(uid: string): Promise<readonly Device[]>;
  /**
   * Ends one session as *kicked*, on whichever node; a missing session is no error.
   * Throws `bad_id`.
   */
  kick(uid: string, sessionId: string): Promise<void>;
}

export function createUsers(ports: {
  readonly store: UserStore & Pick<SessionStore, "sessionsOf" | "endSession">;
  readonly directory: Pick<SessionDirectory, "presence" | "liveSessions">;
  readonly publisher: Announcer;
}): Users {
  const { store, directory, publisher } = ports;

  /** Also sessions of a dead node, which may come back. */
  async function endSessions(
    uid: string,
    reason: CloseReason,
    which: (session: SessionRecord) => boolean,
  ): Promise<void> {
    const [entries = []] = await store.sessionsOf([uid]);
    const doomed = entries.map(({ session }) => session).filter(which);
    await Promise.all(doomed.map((one) => store.endSession(one, reason)));
  }

  /** Nodes that serve the user check its sessions at once. */
  async function recheck(uid: string): Promise<void> {
    await publisher.announce([{ kind: "credential", uid }]);
  }

  return {
    async setToken({ uid, token, flag, level }) {
      assertUserUid(uid);
      const device = { uid, flag, level, tokenHash: hashToken(token) };
      const before = await store.putDevice(device);
      if (!before) return;
      const isEqual = hashesEqual(before.tokenHash, device.tokenHash);
      const tag = tokenTag(device.tokenHash);
      await recheck(uid);
      if (before.level === MAIN_DEVICE || level === MAIN_DEVICE)
        await endSessions(
          uid,
          "token_changed",
          (one) =>
            one.flag === flag &&
            one.level === MAIN_DEVICE &&
            one.tokenTag !== tag &&
            !(isEqual && one.tokenTag === ""), // it logged in without a token
        );
    },

    async quitDevice(uid, flags) {
      assertUserUid(uid);
      for (const flag of flags) {
        const device = await store.device(uid, flag);
        await store.putDevice({
          uid,
          flag,
          level: device?.level ?? SECONDARY_DEVICE,
          tokenHash: new Uint8Array(),
        });
      }
      await recheck(uid);
      await endSessions(uid, "logged_out", (one) => flags.includes(one.flag));
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
      const found = await Promise.all(DEVICE_FLAGS.map((flag) => store.device(uid, flag)));
      return found.filter((device) => device !== undefined);
    },

    async kick(uid, sessionId) {
      assertId(uid, "uid");
      await endSessions(uid, "kicked", (one) => one.sessionId === sessionId);
    },
  };
}
