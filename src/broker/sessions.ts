// Device sessions: a connect is logged in at the store, which admits it and decides which sessions
// it ends. State: none; the hub closes sockets.

import { BrokerError, type CloseReason } from "./errors.ts";
import { assertUserUid } from "./ids.ts";
import {
  type DeviceFlag,
  type DeviceLevel,
  isId,
  SECONDARY_DEVICE,
  type SessionRecord,
} from "./model.ts";
import type { Claim } from "./ports.ts";
import type { SessionDirectory } from "./session-directory.ts";
import { hashToken, tokenTag } from "./tokens.ts";

export interface Login {
  readonly sessionId: string;
  readonly nodeId: string;
  readonly uid: string;
  readonly token: string;
  readonly flag: DeviceFlag;
  /** The client's name for the device; empty: none, no session is replaced. */
  readonly deviceId: string;
  /** The level the client claims; used only without authentication. */
  readonly level: DeviceLevel | undefined;
  /**
   * The name of the session it continues, or the client's own name for this login; empty: a login.
   */
  readonly continues: string;
}

export type OpenResult =
  | {
      readonly kind: "open";
      readonly record: SessionRecord;
      /** For continuing it. */
      readonly name: string;
      /** A superset of the user's groups. */
      readonly groups: readonly string[];
    }
  | {
      /** It cannot be continued, and the client must not reconnect by itself. */
      readonly kind: "ended";
      readonly reason: CloseReason;
    };

export interface Sessions {
  /**
   * Opens a session and ends others: main devices of the same flag are *kicked*, the same device is
   * *replaced* [decisions: Kick rule]. A session that continues an earlier one is no login and ends
   * only that one [decisions: resume is no login]. Throws `unauthorized`, `reserved_uid`, `bad_id`.
   */
  open(login: Login): Promise<OpenResult>;
}

export function createSessions(
  directory: Pick<SessionDirectory, "login">,
  clientAuth: "token" | "none",
): Sessions {
  return {
    async open(login) {
      const { token, level, continues } = login;
      assertUserUid(login.uid);
      if (login.deviceId !== "" && !isId(login.deviceId))
        throw new BrokerError("bad_id", { message: "deviceId is not valid" });
      const tokenHash = clientAuth === "token" ? hashToken(token) : undefined;
      // Field by field: V8 stores objects made by spreading in a slower and larger form.
      const asked: SessionRecord = {
        sessionId: login.sessionId,
        nodeId: login.nodeId,
        uid: login.uid,
        flag: login.flag,
        level: level ?? SECONDARY_DEVICE,
        deviceId: login.deviceId,
        tokenTag: tokenHash === undefined ? "" : tokenTag(tokenHash),
      };
      const claim = claimOf(continues);
      const placed = await directory.login(asked, { claim, tokenHash });
      switch (placed.kind) {
        case "unauthorized":
          throw new BrokerError("unauthorized", {
            message: "uid, device flag and token do not match",
          });
        case "refused":
          return { kind: "ended", reason: placed.reason };
        case "entered": {
          const { session, order, groups } = placed;
          const name = sessionName(session.sessionId, order);
          return { kind: "open", record: session, name, groups };
        }
      }
    },
  };
}

const ORDER_DIGITS = 10;
const NAME = /~([0-9a-z]{10})$/;
/** 2024-01-01 in microseconds: no login is older. */
const FIRST_ORDER = 1_704_067_200_000_000;

/**
 * The name by which a client continues its session: the session's id and the order of its login, so
 * that the order is known also if the store has lost the login.
 */
function sessionName(sessionId: string, order: number): string {
  return `${sessionId}~${order.toString(36).padStart(ORDER_DIGITS, "0")}`;
}

/** The claim of a name; "" claims nothing, it is a login. */
function claimOf(name: string): Claim | undefined {
  if (name === "") return undefined;
  const order = Number.parseInt(NAME.exec(name)?.[1] ?? "", 36);
  return order >= FIRST_ORDER ? { order } : { label: name };
}
