// Opens the session of a CONNECT. The store decides whether the session is entered and which other
// sessions it ends. The hub closes the sockets of the ended sessions.

import { BrokerError, type CloseReason } from "./errors.ts";
import { assertUserUid } from "./ids.ts";
import {
  DEVICE_FLAGS,
  type DeviceFlag,
  type DeviceLevel,
  isId,
  SECONDARY_DEVICE,
  type SessionRecord,
} from "./model.ts";
import type { UserStore } from "./ports.ts";
import type { SessionDirectory } from "./session-directory.ts";
import { claimIn } from "./session-names.ts";
import { hashesEqual, hashToken, tokenTag } from "./tokens.ts";

export interface Login {
  readonly sessionId: string;
  readonly nodeId: string;
  readonly uid: string;
  readonly token: string;
  readonly flag: DeviceFlag;
  /** Device id chosen by the client. An empty id matches no other session. */
  readonly deviceId: string;
  /** Device level chosen by the client. Used only if clients are not authenticated. */
  readonly level: DeviceLevel | undefined;
  /** Name of the session to continue, or a name chosen for this login. "" for none. */
  readonly continues: string;
}

export type OpenResult =
  | {
      readonly kind: "open";
      readonly record: SessionRecord;
      readonly order: number;
      readonly groups: readonly string[];
      readonly newestId: number;
    }
  | {
      /** The session cannot be continued, and the client must not reconnect by itself. */
      readonly kind: "ended";
      readonly reason: CloseReason;
    };

export interface Sessions {
  /**
   * Opens a session. A login of a main device ends the user's other main sessions of that flag as
   * `kicked`. Every login ends earlier sessions of the same device as `replaced` [decisions: Kick
   * rule, resume is no login]. Throws `unauthorized`, `banned`, `reserved_uid`, `bad_id` or
   * `unavailable`.
   */
  open(login: Login): Promise<OpenResult>;
}

/** A login with a valid token of the user that is registered for another device flag. */
interface WrongFlag {
  readonly uid: string;
  readonly flag: DeviceFlag;
  readonly registeredFlag: DeviceFlag;
}

interface WrongFlagPorts {
  readonly store: Pick<UserStore, "device">;
  /** True in protected mode: the refusal then names the flag of the token. */
  readonly isNamedToClient: boolean;
  report(login: WrongFlag): void;
}

const FLAG_NAMES = ["app", "web", "desktop"] as const satisfies Record<DeviceFlag, string>;

export function createSessions(
  directory: Pick<SessionDirectory, "login">,
  clientAuth: "token" | "none",
  wrongFlags?: WrongFlagPorts,
): Sessions {
  async function unauthorized(
    { uid, flag }: Login,
    tokenHash: Uint8Array | undefined,
  ): Promise<BrokerError> {
    const message = "uid, device flag and token do not match";
    if (wrongFlags === undefined || tokenHash === undefined)
      return new BrokerError("unauthorized", { message });
    const { store, isNamedToClient, report } = wrongFlags;
    const otherFlags = DEVICE_FLAGS.filter((other) => other !== flag);
    const devices = await Promise.all(otherFlags.map((other) => store.device(uid, other)));
    const device = devices.find((other) => other && hashesEqual(other.tokenHash, tokenHash));
    if (device === undefined) return new BrokerError("unauthorized", { message });
    const registeredFlag = device.flag;
    report({ uid, flag, registeredFlag });
    const detail = `the token is registered for device flag ${nameOf(registeredFlag)}, but CONNECT has device flag ${nameOf(flag)}`;
    return new BrokerError("unauthorized", {
      message: isNamedToClient ? `${message}: ${detail}` : message,
    });
  }

  return {
    async open(login) {
      const { token, level, continues } = login;
      assertUserUid(login.uid);
      if (login.deviceId !== "" && !isId(login.deviceId))
        throw new BrokerError("bad_id", {
          message:
            "deviceId must have at most 128 characters, no control characters and none of @ # &",
        });
      const tokenHash = clientAuth === "token" ? hashToken(token) : undefined;
      // Written field by field: V8 stores an object made by spreading in a slower and larger form.
      const requested: SessionRecord = {
        sessionId: login.sessionId,
        nodeId: login.nodeId,
        uid: login.uid,
        flag: login.flag,
        level: level ?? SECONDARY_DEVICE,
        deviceId: login.deviceId,
        tokenTag: tokenHash === undefined ? "" : tokenTag(tokenHash),
      };
      const claim = claimIn(continues);
      const result = await directory.login(requested, { claim, tokenHash });
      switch (result.kind) {
        case "unauthorized":
          throw await unauthorized(login, tokenHash);
        case "refused":
          if (result.reason === "banned") throw new BrokerError("banned");
          return { kind: "ended", reason: result.reason };
        case "entered": {
          const { session, order, groups, newestId } = result;
          return { kind: "open", record: session, order, groups, newestId };
        }
      }
    },
  };
}

function nameOf(flag: DeviceFlag): string {
  return `${flag} (${FLAG_NAMES[flag]})`;
}
