/** Server-sent events over fetch: an EventSource cannot send a key, and a key does not belong into an address. */

export interface Message {
  id: string;
  event: string;
  data: string;
}

/** Cuts what arrives into messages; what is not complete yet is kept for the next piece. */
export class Reader {
  private rest = '';

  feed(piece: string): Message[] {
    this.rest += piece.replace(/\r\n/g, '\n');
    const blocks = this.rest.split('\n\n');
    this.rest = blocks.pop() ?? '';
    return blocks.map(message).filter((it) => it.data !== '');
  }
}

function message(block: string): Message {
  const found: Message = { id: '', event: 'message', data: '' };
  const data: string[] = [];
  for (const line of block.split('\n')) {
    const at = line.indexOf(':');
    if (at <= 0) continue;
    const value = line.slice(at + 1).replace(/^ /, '');
    const field = line.slice(0, at);
    if (field === 'data') data.push(value);
    else if (field === 'id') found.id = value;
    else if (field === 'event') found.event = value;
  }
  found.data = data.join('\n');
  return found;
}
