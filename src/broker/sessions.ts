// Device sessions: how a connect is entered in the session directory, which decides whether it may and whom it ends. State: none; the hub closes sockets.

import { BrokerError, type CloseReason } from "./errors.ts";
import { assertUserUid } from "./ids.ts";
import {
  type DeviceFlag,
  type DeviceLevel,
  isId,
  MAIN_DEVICE,
  SECONDARY_DEVICE,
  type SessionRecord,
} from "./model.ts";
import type { SessionDirectory, SessionName, UserStore } from "./ports.ts";
import { claimOf, sessionName } from "./session-names.ts";
import { hashToken, tokenTag } from "./tokens.ts";

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
  /** The name of the session it continues, or the client's own for this login; empty: none, it is a login. */
  readonly continues: string;
}

export type Opened =
  | {
      readonly kind: "open";
      readonly record: SessionRecord;
      /** By which the client continues it. */
      readonly name: string;
    }
  | {
      /** It cannot be continued, and the client is not to come back by itself. */
      readonly kind: "ended";
      readonly reason: CloseReason;
    };

export interface Sessions {
  /**
   * Opens a session and ends those it must: main devices of the same flag are *kicked*, the same device is *replaced* [decisions: Kick rule]. One
   * that continues an earlier session is no login: it ends nobody but that one [decisions: resume is no login]. Throws `unauthorized`,
   * `reserved_uid`, `bad_id`.
   */
  open(login: Login): Promise<Opened>;
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

/**
 * Why a session that its node cannot serve now may not go on: the node may have been frozen while the user logged in elsewhere. Undefined: it may, or
 * that cannot be found out now.
 */
export async function endedBy(
  session: SessionName,
  directory: Pick<SessionDirectory, "endedBy">,
): Promise<CloseReason | undefined> {
  try {
    return await directory.endedBy(session);
  } catch {
    return undefined; // the caller has an error to report already
  }
}

export function createSessions(
  directory: Pick<SessionDirectory, "register" | "unregister">,
  clientAuth: "token" | "none",
): Sessions {
  return {
    async open({ token, level, continues, ...login }) {
      assertUserUid(login.uid);
      if (login.deviceId !== "" && !isId(login.deviceId))
        throw new BrokerError("bad_id", { message: "deviceId is not valid" });
      const tokenHash = clientAuth === "token" ? hashToken(token) : undefined;
      const asked: SessionRecord = {
        ...login,
        level: level ?? SECONDARY_DEVICE,
        tokenTag: tokenHash === undefined ? "" : tokenTag(tokenHash),
      };
      const claim = claimOf(continues);
      const placed = await directory.register(asked, { claim, tokenHash });
      switch (placed.kind) {
        case "unauthorized":
          throw new BrokerError("unauthorized", {
            message: "uid, device flag and token do not match",
          });
        case "refused":
          return { kind: "ended", reason: placed.reason };
        case "entered": {
          const { session, order } = placed;
          const name = sessionName(session.sessionId, order);
          return { kind: "open", record: session, name };
        }
      }
    },

    close: (session) => directory.unregister(session),
  };
}
