// Device sessions: who may open one, whom it ends. State: none; the session directory decides kicks, the hub closes sockets.

import { BrokerError } from "./errors.ts";
import { assertUserUid } from "./ids.ts";
import {
  type DeviceFlag,
  type DeviceLevel,
  isId,
  SECONDARY_DEVICE,
  type SessionRecord,
} from "./model.ts";
import type { Publisher, SessionDirectory, UserStore } from "./ports.ts";
import { hashesEqual, hashToken, tokenTag } from "./tokens.ts";

export interface Login {
  readonly sessionId: string;
  readonly nodeId: string;
  readonly uid: string;
  readonly token: string;
  readonly flag: DeviceFlag;
  /** The client's own name for the device; empty: none, replaces nothing. */
  readonly deviceId: string;
  /** What the client claims; counts only when authentication is off. */
  readonly level: DeviceLevel | undefined;
}

export interface Sessions {
  /**
   * Opens a session and ends those it must: main devices of the same flag are *kicked*, the same device is *replaced* [decisions: Kick rule].
   * Throws `unauthorized`, `reserved_uid`, `bad_id`.
   */
  open(login: Login): Promise<SessionRecord>;
  /** Takes the session out of the directory; harmless when it was ended before. */
  close(session: SessionRecord): Promise<void>;
}

export function createSessions(
  ports: {
    readonly store: UserStore;
    readonly directory: SessionDirectory;
    readonly publisher: Publisher;
  },
  clientAuth: "token" | "none",
): Sessions {
  const { store, directory, publisher } = ports;

  async function authenticate(
    login: Login,
  ): Promise<Pick<SessionRecord, "level" | "tokenTag">> {
    if (clientAuth === "none")
      return { level: login.level ?? SECONDARY_DEVICE, tokenTag: "" };
    const device = await store.device(login.uid, login.flag);
    if (!device || !hashesEqual(device.tokenHash, hashToken(login.token)))
      throw new BrokerError("unauthorized", {
        message: "uid, device flag and token do not match",
      });
    return { level: device.level, tokenTag: tokenTag(device.tokenHash) };
  }

  function endOther(other: SessionRecord, by: SessionRecord): void {
    const sameDevice = by.deviceId !== "" && by.deviceId === other.deviceId;
    publisher.publish({
      kind: "end_session",
      uid: other.uid,
      sessionId: other.sessionId,
      reason: sameDevice ? "replaced" : "kicked",
    });
  }

  return {
    async open(login) {
      assertUserUid(login.uid);
      if (login.deviceId !== "" && !isId(login.deviceId))
        throw new BrokerError("bad_id", { message: "deviceId is not valid" });
      const known = await authenticate(login);
      const session: SessionRecord = {
        sessionId: login.sessionId,
        nodeId: login.nodeId,
        uid: login.uid,
        flag: login.flag,
        level: known.level,
        deviceId: login.deviceId,
        tokenTag: known.tokenTag,
      };
      const ended = await directory.register(session);
      try {
        await authenticate(login); // the token may have changed between the check and the entry, and its change saw no session to end
      } catch (refusal) {
        await directory.unregister(session);
        throw refusal;
      } finally {
        for (const other of ended) endOther(other, session);
      }
      return session;
    },

    close: (session) => directory.unregister(session),
  };
}
