import { expect, it } from 'vitest';
import { Reader } from './stream';

it('finds messages however they are cut', () => {
  const text = ': hello\n\nid: f0-1\nevent: task.created\ndata: {"a":1}\n\nid: f0-2\ndata: x\ndata: y\n\n';
  for (let size = 1; size < text.length; size += 1) {
    const reader = new Reader();
    const found = [];
    for (let at = 0; at < text.length; at += size) found.push(...reader.feed(text.slice(at, at + size)));
    expect(found).toEqual([
      { id: 'f0-1', event: 'task.created', data: '{"a":1}' },
      { id: 'f0-2', event: 'message', data: 'x\ny' },
    ]);
  }
});
