// Device sessions: who may open one, whom it ends. State: none; the session directory decides kicks, the hub closes sockets.

import { BrokerError } from "./errors.ts";
import { assertUserUid } from "./ids.ts";
import {
  type DeviceFlag,
  type DeviceLevel,
  isId,
  MAIN_DEVICE,
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
  /** Takes the session out of the directory; harmless when it was ended before. Whoever watches the user hears of either. */
  close(session: SessionRecord): Promise<void>;
}

/**
 * Why a session may not go on as far as its user's devices tell, for who finds it gone from the directory and was not told why; undefined: it
 * may. Ended by a logout, or as a main session by another token [decisions: /user/token again]. Throws `unavailable`.
 */
export async function endedByCredential(
  session: SessionRecord,
  store: Pick<UserStore, "device">,
): Promise<"logged_out" | "token_changed" | undefined> {
  if (session.tokenTag === "") return undefined; // it needed none
  const device = await store.device(session.uid, session.flag);
  if (device === undefined) return undefined; // the store lost its data: nobody took the right away
  if (device.tokenHash.length === 0) return "logged_out";
  const isSame = tokenTag(device.tokenHash) === session.tokenTag;
  return isSame || session.level !== MAIN_DEVICE ? undefined : "token_changed";
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
      publisher.publish({ kind: "presence", uid: session.uid });
      return session;
    },

    async close(session) {
      await directory.unregister(session);
      publisher.publish({ kind: "presence", uid: session.uid });
    },
  };
}
