// The client: what an app may call, and its beginning and end. State: none but its parts'.

import type { Client } from "./api.ts";
import { createAsking } from "./asking.ts";
import { badOption, checkName } from "./named.ts";
import type { Settings } from "./options.ts";
import { createParts, type Parts } from "./parts.ts";

const EVENTS =
  "message event stream command conversation presence status kicked error";

/** A client that connects, and comes back until it is closed. */
export function createClient(settings: Settings): Client {
  const parts = createParts(settings);
  const stopListening = onceNetworkReturns(() => parts.connector.connectNow());
  parts.inbound.events.on("status", (status) => {
    if (status === "closed") stopListening();
  });
  parts.connector.connectNow();
  return createApi(settings, parts);
}

function createApi(settings: Settings, parts: Parts): Client {
  const { calls, sending, connector } = parts;
  const { events, timelines, streams, commands, watching, receiving } =
    parts.inbound;
  const { uid, deviceId } = settings;
  return {
    uid,
    deviceId,
    get status() {
      return connector.status;
    },
    on(event, handler) {
      checkName("on", event, EVENTS);
      if (typeof handler !== "function")
        throw badOption(`on: the handler of ${event} must be a function`);
      const off = events.on(event, handler);
      if (event === "command") commands.work();
      return off;
    },
    ready: () => calls.connected(),
    send: sending.send,
    ...createAsking(calls.call, receiving),
    streamOf: (channel, clientMsgNo) => streams.of(channel, clientMsgNo),
    watchPresence: (uids, handler) => watching.watch(uids, handler),
    cursors: () => timelines.cursors(),
    close: () => connector.close(),
  };
}

/** Browsers tell when the network is back: then there is no point in waiting out a pause. */
function onceNetworkReturns(listener: () => void): () => void {
  const page = globalThis as Partial<EventTarget>; // Node's global object is none
  page.addEventListener?.("online", listener);
  return () => page.removeEventListener?.("online", listener);
}
