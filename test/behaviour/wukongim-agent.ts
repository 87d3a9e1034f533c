// An app on WuKongIM's JavaScript SDK, for tests. It is bundled with the SDK, for a browser page or
// for Node. In Node, each evaluation of the bundle is a separate copy. Keeps the state of the SDK
// and the calls that its listeners received.

import { WKSDK } from "wukongimjssdk/lib/sdk.js";

export interface Start {
  readonly addr: string;
  readonly uid: string;
  readonly token: string;
  readonly heartbeatInterval: number;
}

/** Everything the listeners have received so far. */
export interface ListenerLog {
  readonly statuses: readonly number[];
  readonly messages: readonly ReceivedMessage[];
  readonly commands: readonly string[];
  readonly acks: readonly { readonly seq: number; readonly reason: number }[];
  /** True if the SDK reconnects when its socket closes. */
  readonly reconnects: boolean;
}

interface ReceivedMessage {
  readonly text: string;
  readonly from: string;
  readonly channel: string;
  readonly type: number;
  readonly seq: number;
}

const statuses: number[] = [];
const messages: ReceivedMessage[] = [];
const commands: string[] = [];
const acks: { seq: number; reason: number }[] = [];

/** Members of the SDK's connection manager that its types hide. */
interface ConnectionInternals {
  readonly needReconnect: boolean;
  readonly ws: { readonly ws: WebSocket } | undefined;
  sendPing(): void;
}

const sdk = WKSDK.shared();
const internals = (): ConnectionInternals => sdk.connectManager as unknown as ConnectionInternals;

export function start({ addr, uid, token, heartbeatInterval }: Start): void {
  Object.assign(sdk.config, { addr, uid, token, heartbeatInterval });
  ignorePingsWhileConnecting();
  sdk.connectManager.addConnectStatusListener((status: number) => {
    statuses.push(status);
  });
  sdk.chatManager.addMessageListener((message) => {
    if (!message.messageSeq) return; // the user's own message before it was sent
    messages.push({
      text: (message.content as { text?: string }).text ?? "",
      from: message.fromUID,
      channel: message.channel.channelID,
      type: message.channel.channelType,
      seq: message.messageSeq,
    });
  });
  sdk.chatManager.addCMDListener((message) => {
    commands.push((message.content as { cmd?: string }).cmd ?? "");
  });
  sdk.chatManager.addMessageStatusListener((ack) => {
    acks.push({ seq: ack.messageSeq, reason: ack.reasonCode });
  });
  sdk.connect();
}

/**
 * Ignores errors of the SDK's heartbeat while a socket is opening. The heartbeat continues during a
 * reconnect and throws between the creation and the opening of the new socket. Such an error would
 * end Node, and a page would report it.
 */
function ignorePingsWhileConnecting(): void {
  const manager = internals();
  const sendPing = manager.sendPing.bind(manager);
  manager.sendPing = () => {
    try {
      sendPing();
    } catch (error) {
      if (manager.ws?.ws.readyState !== WebSocket.CONNECTING) throw error;
    }
  };
}

export function listenerLog(): ListenerLog {
  const reconnects = internals().needReconnect;
  return { statuses, messages, commands, acks, reconnects };
}

export function send(id: string, type: number, text: string): void {
  sdk.chatManager.send(sdk.newMessageText(text), sdk.newChannel(id, type));
}

/** Closes the socket, as if the connection were lost. */
export function drop(): void {
  internals().ws?.ws.close();
}

export function stop(): void {
  sdk.disconnect();
}
