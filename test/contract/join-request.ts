// A call of `joinState` with defaults, for suites that check only a part of its result.

import type { JoinRequest, JoinState, SessionStore } from "../../src/broker/ports.ts";

const PAGE = { limit: 100, maxBytes: 1_000_000 };

/** Reads the state with which a session of the user would join. */
export async function joinStateOf(
  store: Pick<SessionStore, "joinState">,
  uid: string,
  request: Partial<Omit<JoinRequest, "session">> & { readonly sessionId?: string },
): Promise<JoinState> {
  const { sessionId = "none", ...rest } = request;
  return store.joinState({
    ...{ session: { uid, sessionId }, groups: [], positions: [], inboxPage: PAGE },
    ...rest,
  });
}
