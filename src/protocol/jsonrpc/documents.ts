// Splits a WebSocket message into its JSON documents. There is usually one, but WuKongIM's servers
// accept several. Never throws: a document that cannot be read is part of the result.

const MAX_DOCUMENTS = 100;

export type Document = { readonly value: unknown; readonly text: string } | undefined;

const utf8 = new TextDecoder("utf-8", { fatal: true });

/** The last entry is `undefined` if a text is not valid or there are more than `MAX_DOCUMENTS`. */
export function readDocuments(data: Uint8Array): readonly Document[] {
  let text: string;
  try {
    text = utf8.decode(data);
  } catch {
    return [undefined];
  }
  const document = parse(text);
  return document === undefined ? readEach(text) : [document];
}

function readEach(text: string): readonly Document[] {
  const documents: Document[] = [];
  for (let offset = 0; offset < text.length; ) {
    const end = endOfObject(text, offset);
    const document = parse(text.slice(offset, end));
    if (document === undefined && text.slice(offset).trim() === "") break;
    documents.push(document);
    if (document === undefined || documents.length > MAX_DOCUMENTS) break;
    offset = end;
  }
  if (documents.length > MAX_DOCUMENTS) documents[MAX_DOCUMENTS] = undefined;
  return documents.length === 0 ? [undefined] : documents;
}

function parse(text: string): Document {
  try {
    return { value: JSON.parse(text), text };
  } catch {
    return undefined;
  }
}

function endOfObject(text: string, from: number): number {
  let depth = 0;
  let isQuoted = false;
  for (let offset = from; offset < text.length; offset++) {
    const letter = text[offset];
    if (isQuoted) {
      if (letter === "\\") offset += 1;
      else if (letter === '"') isQuoted = false;
    } else if (letter === '"') isQuoted = true;
    else if (letter === "{") depth += 1;
    else if (letter === "}") {
      depth -= 1;
      if (depth <= 0) return offset + 1;
    }
  }
  return text.length;
}
