// Creates the parts of a node that determine which users need a push notification. Keeps no state.

import { Acknowledgements } from "../broker/acknowledgements.ts";
import { PushCursors } from "../broker/push-cursors.ts";
import { Unreached } from "../broker/unreached.ts";
import type { OperationPorts } from "../gateway/operations.ts";
import { roomLogger } from "../observe/logger.ts";
import { errorLog, type Node } from "./node.ts";

/**
 * Maximum time that an acknowledgement waits before it is stored together with other
 * acknowledgements.
 */
const MAX_WRITE_MS = 500;
/** Minimum time for which an acknowledgement is kept after its message's push decision is due. */
const KEEP_MS = 60_000;

export interface NodePush {
  /**
   * Receives acknowledgements and background states from this node's sessions. `undefined` in the
   * `wukongim` dialect, whose rule for push notifications ignores them.
   */
  readonly signals: OperationPorts["push"];
  start(): Promise<void>;
  close(): Promise<void>;
}

/** Creates the parts that decide on push notifications, if `push.enabled` is true. */
export function createNodePush(node: Node): NodePush | undefined {
  const { config, store, directory, systemAccounts, drivers, metrics } = node;
  if (!config.push.enabled) return undefined;
  const { pushDecided, pushUsers, pushLag } = metrics.families;
  const { maxMembers } = config.push;
  const isDialect = config.api.dialect === "wukongim";
  const isConfigured = node.configPlaces?.has("push.afterMs") ?? false;
  const afterMs = isDialect && !isConfigured ? 0 : config.push.afterMs;
  const onError = errorLog(node, "push");
  const acknowledgements = isDialect
    ? undefined
    : new Acknowledgements({
        ...{ store, onError, keepMs: afterMs + KEEP_MS },
        writeMs: Math.min(MAX_WRITE_MS, afterMs / 4),
      });
  const cursors = new PushCursors({
    ...{ store, afterMs, onError, clock: drivers.clock },
    unreached: new Unreached({
      ...{ store, directory, maxMembers, onError, isSystem: systemAccounts.has },
      rule: isDialect ? "main" : "foreground",
    }),
    onDecided(messages, users) {
      pushDecided.of().add(messages);
      pushUsers.of().add(users);
    },
  });
  pushLag.of().from(() => cursors.lagMs / 1000);
  return {
    signals: acknowledgements && {
      acknowledged: (uid, message) => acknowledgements.add(uid, message),
      setBackground: (session, isBackground) => directory.setBackground(session, isBackground),
    },

    async start() {
      if ((await store.feedSwitch()) !== true)
        roomLogger(node.logger, "push").warn(
          "push.enabled is true, but the event feed is off, so nobody gets a push. Run jindou events on",
        );
      await cursors.start();
    },

    async close() {
      await acknowledgements?.close();
      await cursors.close();
    },
  };
}
