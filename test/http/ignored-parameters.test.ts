// The header jindou-ignored-parameters in refusals and in replies with server-sent events, on both
// transports.

import { spawnBroker } from "../support/broker.ts";
import { t } from "../support/suite.ts";

const STREAM = { channel_id: "team", channel_type: 2, client_msg_no: "s" };

for (const driver of ["uws", "portable"])
  t.test(
    `${driver}: a refusal and a response with server-sent events both name the misspelt query parameter of the request`,
    async (t) => {
      const node = await spawnBroker(t, { JINDOU_TRANSPORT_DRIVER: driver });
      await node.call("/user/token", { uid: "amy", token: "amy-token", device_flag: 1 });
      await node.call("/channel", { channel_id: "team", channel_type: 2, subscribers: ["amy"] });
      const start = { type: "___TextMessageStart" };
      await node.call("/event", { ...STREAM, from_uid: "amy", event: start });
      await node.call("/events/feed", { feed: "on" });

      async function ignoredIn(port: number, path: string, accept: string) {
        const ended = new AbortController();
        const response = await fetch(`http://127.0.0.1:${port}${path}`, {
          headers: { accept },
          signal: ended.signal,
        });
        const { status, headers } = response;
        const isStream = headers.get("content-type")?.startsWith("text/event-stream") ?? false;
        const chunk = isStream ? await response.body?.getReader().read() : undefined;
        ended.abort();
        return {
          status,
          ignored: headers.get("jindou-ignored-parameters"),
          isStream: chunk !== undefined && !chunk.done,
        };
      }

      const user = "uid=amy&token=amy-token&device_flag=1";
      const log = "/v1/stream/channel/2/team/s";
      for (const port of [node.apiPort, node.clientPort]) {
        const refusal = { status: 401, isStream: false };
        for (const [path, ignored] of [
          ["/stream/2/team/s?uid=amy&token=guess&form=1", "form"],
          [`${log}?uid=amy&token=guess&ofset=-1`, "ofset"],
          [`${log}?uid=amy&token=guess&offset=-1`, null],
        ] as const)
          t.same(await ignoredIn(port, path, "*/*"), { ...refusal, ignored }, path);
        const opened = { status: 200, isStream: true };
        for (const [path, ignored] of [
          [`/stream/2/team/s?${user}&frm=0`, "frm"],
          [`/stream/2/team/s?${user}&from=0`, null],
          [`${log}?${user}&offset=-1&live=sse&cursr=1`, "cursr"],
          [`${log}?${user}&offset=-1&live=sse`, null],
        ] as const)
          t.same(await ignoredIn(port, path, "text/event-stream"), { ...opened, ignored }, path);
      }
      for (const path of ["/stream/2/team/s", log]) {
        const result = await ignoredIn(node.clientPort, `${path}?uid=amy&tokn=amy-token`, "*/*");
        t.match(result, { status: 401, ignored: "tokn" }, path);
      }
      const feed = await ignoredIn(node.apiPort, "/events?typs=message.sent", "text/event-stream");
      t.same(feed, { status: 200, isStream: true, ignored: "typs" }, "/events");
    },
  );
