// What the domain asks of a cluster for sessions: the part of the Cluster port (`ports.ts`) that knows who is online where. Prose is contract, as
// there.

import type { CloseReason } from "./errors.ts";
import type { Presence, SessionRecord } from "./model.ts";

export interface SessionDirectory {
  /**
   * Enters a session, atomically deciding whom it ends: every other main session of the same uid and flag when it is a main one, and any
   * session of the same uid, flag and (non-empty) deviceId. The ended ones are out of the directory when the promise resolves.
   */
  register(session: SessionRecord): Promise<readonly SessionRecord[]>;
  /** Takes a session out; harmless when it is not in. */
  unregister(session: SessionRecord): Promise<void>;
  /**
   * Takes a session out and tells the node that serves it to end it (`end_session`), in one step: whichever node that is, and also when it is not
   * in any more. Throws `unavailable`: both happened or neither.
   */
  end(session: SessionRecord, reason: CloseReason): Promise<void>;
  sessionsOf(uid: string): Promise<readonly SessionRecord[]>;
  /** One record per uid, in order, duplicates included. */
  presence(uids: readonly string[]): Promise<readonly Presence[]>;
}
