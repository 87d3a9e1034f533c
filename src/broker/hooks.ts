// Ports of the hooks, with which a backend decides whether a client may log in or send a message.

import type { ChannelRef, DeviceFlag } from "./model.ts";
import type { Rights } from "./rights.ts";

/** A login, a refresh or a stream request whose token is valid. */
export interface ConnectAttempt {
  readonly uid: string;
  readonly token: string;
  readonly flag: DeviceFlag;
  readonly deviceId: string;
  readonly address: string;
  readonly origin: string;
  /** Handshake headers that the hook needs. */
  readonly headers: Readonly<Record<string, string>>;
  /** Name of the wire format. */
  readonly format: string;
  /** True if the client replaces an open session's token. */
  readonly isRefresh: boolean;
}

/** Restrictions that a connect hook puts on a session. */
export interface Restrictions {
  /** True if the session must not be a main session. */
  readonly isSecondary: boolean;
  /**
   * Latest time at which the session may expire, in Unix milliseconds. `undefined` means no limit.
   */
  readonly expiresAtMs: number | undefined;
  readonly rights: Rights | undefined;
}

export interface ConnectHook {
  /** Names of the handshake headers that the hook needs, in lower case. */
  readonly headers: readonly string[];
  /**
   * Asks the backend about a login, a refresh or a stream request. Returns the restrictions.
   * Throws `refused_by_hook` if the backend refuses, or if it fails and `onFailure` is `deny`.
   * Throws `overloaded` if too many logins, of all users or of this user, wait for the hook.
   */
  ask(attempt: ConnectAttempt): Promise<Restrictions>;
}

export interface HookedMessage {
  readonly fromUid: string;
  readonly channel: ChannelRef;
  /** `undefined` if the sender chose no value. */
  readonly clientMsgNo: string | undefined;
  readonly payload: Uint8Array;
}

export interface SendHook {
  /** Returns true if messages to the channel must pass the hook. */
  covers(channel: ChannelRef): boolean;
  /**
   * Returns the payload that replaces the message's payload, or `undefined` if the payload is not
   * replaced. `faultOf` returns the reason why the hook's payload is not valid, or `undefined` if
   * it is valid. Throws `refused_by_hook` if the backend refuses, if its payload is not valid, or
   * if it fails and `onFailure` is `deny`. Throws `overloaded` if too many messages, of all users
   * or of this user, wait for the hook.
   */
  ask(
    message: HookedMessage,
    faultOf: (replacement: Uint8Array) => string | undefined,
  ): Promise<Uint8Array | undefined>;
}
